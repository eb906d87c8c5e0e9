"""From the Unix socket to a request, to the control, and back to an answer.

`service.py` hands requests on, to `changes.py` or `readings.py`. Waiting and errands are its own.

Open `service.py` first.
"""
