"""Requests and answers, and how they are written on the socket between clients and the daemon.

`submit_table.py` declares the options of a submission for both ends.

Open `protocol.py` first.
"""
