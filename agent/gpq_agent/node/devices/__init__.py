"""Which GPUs or CPU slots there are, how they are, and which may be given away.

A look asks the driver, by NVML or nvidia-smi, in a child that may hang. A judgement is what the
agent makes of it. Locks keep several people's gpq apart.

Open `devices.py` first.
"""
