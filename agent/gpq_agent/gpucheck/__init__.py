"""What `gpq doctor --gpu` runs on a server with the interpreter of the user's scripts: a few real
trainings on its GPUs.

`python -m gpq_agent.gpucheck PART DEVICE...` prints a wire.GpuLine as JSON for each check of the
part (`checks.py`). A device is the UUID of a GPU, or "cpu": what needs no GPU runs there too, which
is how the checks themselves are tested.
"""
