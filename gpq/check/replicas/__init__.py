"""Runs a script in its shapes: replicas run side by side, and no process outlives the command.

`courses.py` follows one shape, `fork_server.py` talks to the interpreter that replicas are forked
from, and `scratch.py` makes the one folder that they write to. `judgement` compares what they
trained.

Open `runner.py` first.
"""
