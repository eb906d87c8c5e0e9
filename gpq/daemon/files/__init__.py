"""Checkpoints and code on their way to servers, and their removal.

Open `staging.py` first.
"""
