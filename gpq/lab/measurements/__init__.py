"""Public traces and recorded truth, read strictly. Nothing here is invented.

Open `sources.py` first.
"""
