"""Commands about jobs, with one file for each command.

`status_fast.py` and `submit_fast.py` are fast ways, which import neither typer nor rich.
"""
