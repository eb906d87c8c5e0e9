"""The demonstration: a private daemon with two embedded CPU servers, and three real training jobs.

It plays the users (who submits what, and when) and the judge (what must happen). `cli/lab` draws
it. Open `script.py` first.
"""
