"""Which devices and nodes a job may use, and what stands in its way, each with its line of words.

Health, owners, reservations, leases, environments, files, dependencies and strangers on a server
all answer here. This room chooses nothing: it only says what could be chosen.

Open `shapes.py` first, then `mobility.py`.
"""
