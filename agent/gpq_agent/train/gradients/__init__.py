"""`p.grad` is the whole step's gradient when the last backward returns, and zero before.

A real step follows, at the rate of its batch, and schedulers see the base rate. The probe turns
squared norms into the noise scale. Nothing here notices a habit.

Open `accumulator.py` first, then `step_gate.py`.
"""
