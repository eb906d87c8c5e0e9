"""Requests, answers, and their lines on the socket between clients and the daemon; and the table of
what a submission may be told, `submit_table.py`, which both ends go by.

Open `protocol.py` first.
"""
