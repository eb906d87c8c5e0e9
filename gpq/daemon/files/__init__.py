"""Copies checkpoints and code to servers, and removes them.

Open `staging.py` first.
"""
