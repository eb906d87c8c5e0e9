"""A pipe of bytes to a node, by ssh or on this machine. Knows nothing of messages.

A connector starts the agent on a server and brings the agent's code along. What ssh says when it
fails becomes one line with a hint in `ssh_errors.py`.

Open `base.py` first, then `ssh.py`.
"""
