"""The command line. `fast_path.py` answers what must be fast, and `app.py` passes everything else
to its command.

`jobs` and `lab` are families of commands, `top`, `doctor` and `simulate` one command each. What all
share stands here. `generated` writes man pages, schemas and the data for completion, and no command
imports it.
"""
