"""The recipe of a round: what ought to be, less what is, gives orders.

A round asks the policy for an allotment, places it, and turns the difference into launches, stops
and new batches. Healing does the same for what a node reports. All of it is pure.

Open `rounds.py` first.
"""
