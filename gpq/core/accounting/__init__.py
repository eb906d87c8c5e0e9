"""What was used, waited for and wasted, and how fair it was. It measures and changes nothing.

An account sums up a job's attempts. A spell is the time that one attempt held its GPUs. Fairness
compares a job with its equal share of the cluster.

Open `accrual.py` for the definitions and `report.py` for what people read.
"""
