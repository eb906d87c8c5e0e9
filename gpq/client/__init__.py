"""The client's end of the socket: connects, starts the daemon, follows logs. Prints nothing.

`quick.py` serves `gpq status`, which must stay light.

Open `connection.py` first.
"""
