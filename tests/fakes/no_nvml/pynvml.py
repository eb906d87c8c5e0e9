"""If this folder is first on PYTHONPATH, the server looks as if nvidia-ml-py were not installed."""

raise ImportError("hidden by the test")
