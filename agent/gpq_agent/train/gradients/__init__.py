"""`p.grad` is the whole step's gradient when the last backward returns, and zero before.

Exposes facts, and notices no habit.
"""
