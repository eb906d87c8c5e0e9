"""The agent on a server: requests come in on stdin, replies go out on stdout, in one thread.
Standard library only.

It owns no job, so it may end at any moment: a shim holds each attempt. `__main__.py` is the loop,
and `agent.py` answers. `attempts.py` starts, checks, stops, reports and forgets attempts.
`bootstrap.py` runs first and installs the rest.
"""
