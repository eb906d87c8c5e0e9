"""gpq's own policy: candidates, what each shape is worth, and the exact best choice among them.

It maximises the sum of speedups, weighted by what is left of each job and by its fair share, and
counts a restart against what it gains.

Open `policy.py` first, then `valuation.py`.
"""
