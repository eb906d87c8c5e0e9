"""The write side: a request becomes events, or a refusal that has changed nothing. A file per verb.

Open `submission.py` first.
"""
