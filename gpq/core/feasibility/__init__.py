"""Which devices and servers a job may use, and what prevents it, each with its sentence.

Health, owners, reservations, leases, environments, files, dependencies and unknown attempts on a
server all answer here. This package chooses nothing: it only says what could be chosen.

Open `shapes.py` first, then `mobility.py`.
"""
