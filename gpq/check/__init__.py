"""`gpq check`: runs a script in every shape and compares what it trains with one replica alone.

`pipeline` is the whole of a check, `replicas` runs the shapes, `judgement` compares them. Here is
what all of them speak of, and `keeping.py`, which keeps the verdict for the program. Whatever a
script writes goes to a scratch folder.

Open `verdict.py` first.
"""
