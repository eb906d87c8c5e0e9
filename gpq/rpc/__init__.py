"""Requests, answers, and their lines on the socket between clients and the daemon.

Open `protocol.py` first.
"""
