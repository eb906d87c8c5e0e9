"""The attempts of a spool as the agent sees them: started, looked at, stopped, told of, forgotten.

Open `attempts.py` first; `states.py` says how each attempt is.
"""
