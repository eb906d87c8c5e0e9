"""One run of one policy on one workload in simulated time, and many runs side by side.

The oracle knows the truth that a policy has to learn. A guest is a job in the simulator.

Open `replay.py` first.
"""
