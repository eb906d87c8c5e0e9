"""Standbys: interpreters that have imported torch before an attempt needs them.

A standby is a shim without an attempt, whose child has started the interpreter of a script and
waits. An attempt that fits is handed to it. It then is that attempt's shim, and its child the first
process. Whatever is wrong with a standby, the attempt starts without it.

`interpreter.py` and what it imports run in the environment of the script, and stand on both the
agent and the training library. Nothing imports them.

Open `standbys.py` first.
"""
