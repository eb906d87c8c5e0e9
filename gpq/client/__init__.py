"""The other end of the daemon's socket: connect, start it if need be, follow logs. Prints nothing.

`quick.py` serves `gpq status`, which must stay light.

Open `connection.py` first.
"""
