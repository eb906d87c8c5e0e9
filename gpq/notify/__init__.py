"""One message to one target, in a process of its own. The only room that sees a target's URL.

Open `courier.py` first.
"""
