"""Talking to the program of a job: `gpq run`.

The console is the job's first process and holds the pipes of the program. What the program prints
goes to the attempt's log, so that nothing is lost when a connection is. The relay is a process of
one connection: it reads the log and passes frames on. Both end without each other.

Open `console.py` first.
"""
