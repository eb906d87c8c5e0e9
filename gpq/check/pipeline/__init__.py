"""A whole check, from the script to its verdict: runs all shapes, compares them, and saves the
result with `gpq.check.keeping`.

Knows no terminal: `gpq.cli.jobs.check` prints. Open `proving.py` first.
"""
