"""What gpq ships to servers: the agent (standard library only) and the training library."""

__version__ = "0.2.0"
