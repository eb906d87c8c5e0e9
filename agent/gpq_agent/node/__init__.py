"""The agent on a server: requests in on stdin, replies out on stdout, one thread. Standard library
only.

It owns no job, so it may end at any moment: a shim holds each attempt. `main.py` is the loop,
`requests` answers, `bootstrap.py` is sent ahead and installs the rest.
"""
