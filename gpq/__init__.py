"""gpq: a job manager for shared GPU servers that allocates by goodput. Import nothing here: the door must stay light."""

__version__ = "0.1.0"
