"""Real trainings to their targets on two slots, under several policies: `make bench-real`.

Open `workloads.py` for the trainings. `run.py` plays them under one policy on a daemon of its own.
`records.py` holds what a run writes down. `page.py` makes the tables.
"""
