"""Writes man pages, schemas, the data for completion and the page of commands. No command imports
it."""
