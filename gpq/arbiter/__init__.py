"""The arbiter of a team: who is in it, what it decided, and what it must remember over a restart.

It starts no process and knows no command. What a claim and a grant are belongs to `core/team`, and
the messages belong to `rpc`.

Open `arbiter.py` first, then `roster.py`. `main.py` makes a process of it.
"""
