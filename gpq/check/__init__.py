"""`gpq check`: runs a script in every shape and compares what it trains with one replica.

`runner.py` runs the shapes, `judge.py` and `rows.py` compare them, and `gpq.verdicts` saves
the verdict. Everything that a script writes goes to a scratch folder. Knows no terminal:
`gpq.cli.jobs.check` prints.

Open `proving.py` first.
"""
