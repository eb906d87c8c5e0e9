"""Standbys: interpreters that have imported torch before an attempt needs them.

A standby is a shim without an attempt, whose child has started the interpreter of a script and
waits. An attempt that fits is handed to it. It then is that attempt's shim, and its child the first
process. Whatever is wrong with a standby, the attempt starts without it.

The interpreter's own part is `gpq_agent/standby`, which needs torch. Open `standbys.py` first.
"""
