"""Checkpoints and code on their way in and out, proved by SHA-256, whole or not at all.

Open `staging.py` first.
"""
