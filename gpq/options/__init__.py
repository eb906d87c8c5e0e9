"""What people type, or pass from Python, becomes one request or a UsageError.

Prints nothing and imports no typer. The command line and the Python API share all of it.

Open `submit_request.py` first.
"""
