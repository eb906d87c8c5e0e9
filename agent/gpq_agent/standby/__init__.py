"""What runs in the interpreter of a standby: in the environment of a script, on both the agent and
the training library.

Nothing imports it. `node/standby` starts `interpreter.py` by its path.
"""
