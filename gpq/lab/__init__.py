"""The same core, policies and rounds in simulated time.

`measurements` reads public traces, `replay` runs one policy on them, `compare` runs many.
"""
