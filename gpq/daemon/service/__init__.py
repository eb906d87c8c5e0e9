"""From the Unix socket to a request, to the control, and back to an answer.

`service.py` passes requests on to `changes.py` or `readings.py`. It handles waiting and errands
itself.

Open `service.py` first.
"""
