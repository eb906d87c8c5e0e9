"""The steps of a round: what should be, less what is, gives orders.

A round asks the policy for an allocation, places it, and turns the difference into launches, stops
and new batches. Healing does the same for what a server reports. All of it is pure.

Open `rounds.py` first.
"""
