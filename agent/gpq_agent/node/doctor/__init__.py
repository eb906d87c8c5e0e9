"""What `gpq doctor` has a server look at, measure and try, each in a process of its own.

Open `checks.py` first.
"""
