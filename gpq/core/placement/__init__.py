"""From a shape to the exact devices: the emptiest servers first, without splitting a job
needlessly.

`free_devices.py` knows which devices are still free in a round, and `placement.py` picks among
them.
"""
