"""What is due between users: how many GPUs each may count on, whatever the others submit or
report, and how a round sees to it under any policy.

Nothing here applies to a single user, or if users do not count (`Config.by_user`).

Open `floors.py` for what is due, and `division.py` for how a round keeps it.
"""
