"""Adding, checking and removing a server: its host key, the first contact, config.toml.

Prints nothing. The command line and the Python API share it.

Open `adding.py` first.
"""
