"""Which GPUs or CPU slots the server has, their state, and which ones jobs may get.

A look asks the driver, by NVML or nvidia-smi, in a child that may hang. A verdict is what the agent
concludes from it. Locks keep the gpq of several users apart.

Open `devices.py` first.
"""
