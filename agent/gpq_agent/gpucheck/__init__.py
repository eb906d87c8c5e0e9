"""`gpq doctor --gpu` runs this on a server, with the interpreter of the user's scripts: a few real
trainings on its GPUs.

`python -m gpq_agent.gpucheck PART DEVICE...` prints a wire.GpuLine as JSON for each check of the
part (`checks.py`). A device is the UUID of a GPU, or "cpu". Checks that need no GPU run on "cpu"
too, which is how the tests run them.
"""
