"""Writes man pages, schemas, the data for completion and tables of the README. No command imports
it."""
