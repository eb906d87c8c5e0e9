"""`gpq submit`, and waiting for jobs.

`submit_fast.py` is the fast way, which imports neither typer nor rich.
"""
