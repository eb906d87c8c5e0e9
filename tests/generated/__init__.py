"""Writes man pages, the data for completion, the page of commands and tables of other pages from the program. The
schemas of answers come from `gpq.cli.generated`. Open `reference.py` first."""
