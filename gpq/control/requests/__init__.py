"""The write side: a request becomes events, or a refusal that changed nothing. One file per verb.

Open `submission.py` first.
"""
