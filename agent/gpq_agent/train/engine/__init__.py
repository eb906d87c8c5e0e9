"""What happens around a micro-batch and between two steps, the same on every replica. It does
not know habits.

`engine.py` puts the parts together. `loop.py` runs around a micro-batch, and `boundary.py` between
two steps.
"""
