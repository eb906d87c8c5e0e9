"""`gpq doctor`: checks this machine, servers and their GPUs. Each line has its fix.

Open `doctor.py` first.
"""
