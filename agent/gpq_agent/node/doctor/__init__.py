"""What a server checks, measures and tries for `gpq doctor`, each in its own process.

Open `checks.py` first.
"""
