"""Checkpoints and code on their way in and out, each in a process and on a connection of its own.
SHA-256 verifies them, and they arrive completely or not at all.

Open `transfer.py` first.
"""
