"""The command line. `fast_path.py` answers what must be fast, and `app.py` passes everything else
to its command.

`shared` holds what the commands have in common. Every other package is a family of commands.
`generated` writes man pages, schemas and the data for completion, and no command imports it.
"""
