"""Remembers events, jobs, profiles and outboxes in one SQLite file.

A commit is durable before anyone hears of it. `opening.py` decides whether gpq may use a database
that it finds. `lock.py` makes sure that only one daemon has it. `packing.py` keeps a long past
small.

Open `sqlite.py` first.
"""
