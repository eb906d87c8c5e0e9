"""From a shape to the exact devices: the emptiest nodes first, and no job torn apart needlessly.

`free_devices.py` knows which devices are still free in a round, `placement.py` picks among them.
"""
