"""The pictures of `gpq top`, from one answer each.

Open `top.py` first.
"""
