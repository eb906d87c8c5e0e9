"""Turns new facts of the journal into notifications, without secrets.

Open `notifier.py` first.
"""
