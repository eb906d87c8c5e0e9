"""The pause of a resize: `make bench-resize`. `job.py` is the training that is resized."""
