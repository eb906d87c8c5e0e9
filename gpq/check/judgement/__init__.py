"""Holds what a shape trained against the reference, and guesses the habit behind a difference.

Runs nothing and writes nothing: `records` of the room above are read, and rows come out.
`rounding.py` is how far two right runs may lie apart, `judge.py` what differs, `guesses.py` why.

Open `rows.py` first.
"""
