"""The attempts of a spool as the agent sees them: it starts, checks, stops, reports and forgets
them.

Open `attempts.py` first. `states.py` finds the state of each attempt.
"""
