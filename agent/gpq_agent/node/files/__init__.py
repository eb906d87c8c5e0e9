"""Checkpoints and code on their way in and out. SHA-256 verifies them, and they arrive completely
or not at all.

Open `staging.py` first.
"""
