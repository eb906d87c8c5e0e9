"""`gpq doctor`: checks of this machine, of servers and of their GPUs, each line with its fix.

Open `doctor.py` first.
"""
