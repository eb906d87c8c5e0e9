"""From the Unix socket to a request, to the control, and back to an answer.

Open `service.py` first.
"""
