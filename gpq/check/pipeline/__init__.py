"""A check from the script to its verdict: runs all shapes, has them judged, and has
`gpq.check.keeping` keep what came of it.

Knows no terminal: `gpq.cli.jobs.check` prints. Open `proving.py` first.
"""
