"""`gpq check`: runs a script in every shape and compares what it trains with one replica.

`pipeline` does a whole check, `replicas` runs the shapes and `judgement` compares them. This folder
holds the records that all of them share, and `keeping.py`, which saves the verdict. Everything that
a script writes goes to a scratch folder.

Open `verdict.py` first.
"""
