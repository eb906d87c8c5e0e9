"""What happens around a micro-batch and between two steps, the same on every replica. Knows no
habit.

`engine.py` puts the parts together. `loop.py` is what happens around a micro-batch, `boundary.py`
what happens between two steps.
"""
