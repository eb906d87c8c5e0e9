"""`gpq submit`, and waiting for what was submitted.

`queueing.py` is the fast way, which imports neither typer nor rich.
"""
