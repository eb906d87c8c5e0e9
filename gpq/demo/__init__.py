"""The demonstration: a private daemon with two embedded CPU servers, and three real training jobs
to the end.

Plays the users (who submits what, when) and the judge (what must have happened). Draws nothing:
`cli/lab` does. Open `script.py` first.
"""
