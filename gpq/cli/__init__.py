"""The command line. `fast_path.py` answers what must be fast, `app.py` hands the rest to its
command.

`shared` holds what commands have in common, every other room a family of commands. `generated`
writes man pages, schemas and the data for completion, and no command imports it.
"""
