"""A pipe of bytes to a server, by ssh or on this machine. Knows nothing of messages.

A connector brings the agent's code to a server and starts the agent. If ssh fails, `ssh_errors.py`
turns its complaint into one line with a hint.

Open `local.py` first, then `ssh.py`.
"""
