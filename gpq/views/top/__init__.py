"""The pictures of `gpq top`, from one answer each.

Open `once.py` first.
"""
