"""`gpq check`: runs a script in every shape and compares what it trains with one replica alone.

`replicas` runs the shapes, `judgement` compares them, `keeping.py` keeps the verdict for the
program. Whatever a script writes goes to a scratch folder.

Open `proving.py` first.
"""
