"""What gpq does with real GPUs: small trainings next to plain PyTorch, and looks at the GPUs next to their processes.

`make gpu-check` runs them on the free GPUs of this machine (`real_gpus.py`, which no other run collects). `checks.py` is
their table. What needs no GPU also runs on the CPU, with a defect planted in gpq (`test_planted.py`).
"""
