"""The client's end of the daemon's socket: connects, starts the daemon and follows logs.

Prints nothing.

`quick.py` serves `gpq status`, which must stay light.

Open `connection.py` first.
"""
