"""Compares what a shape trained with the reference, and guesses the habit behind a difference.

Runs nothing and writes nothing: it reads the `records` of the parent package and returns rows.
`rounding.py` says how far two correct runs may differ, `judge.py` finds what differs, and
`guesses.py` says why.

Open `rows.py` first.
"""
