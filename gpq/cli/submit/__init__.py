"""`gpq submit`, and waiting for what was submitted.

`submit_fast.py` is the fast way, which imports neither typer nor rich.
"""
