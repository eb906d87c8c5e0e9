"""Writes man pages, JSON Schemas, the data for completion, the page of commands and tables of other pages from the
program. Open `reference.py` first."""
