"""Runs a script in its shapes: replicas side by side, and no process of it outlives the command.

`courses.py` is a shape on its way, `fork_server.py` the other end of the interpreter that replicas
are forks of, `scratch.py` the one folder that they write to. What they trained is for `judgement`.

Open `runner.py` first.
"""
