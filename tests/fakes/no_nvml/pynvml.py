"""First on PYTHONPATH, this makes a node look as if nvidia-ml-py were not installed."""

raise ImportError("hidden by the test")
