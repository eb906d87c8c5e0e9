"""Remembers: events, jobs, profiles and outboxes in one SQLite file, or in memory for the
simulator.

A commit is durable before anyone hears of it. `opening.py` decides what a database that is found
may be used for, `lock.py` that only one daemon has it.

Open `sqlite.py` first.
"""
