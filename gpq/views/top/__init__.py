"""Draws `gpq top`, each picture from one answer.

Open `once.py` first.
"""
