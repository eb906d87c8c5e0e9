"""What a shape is worth to one job: measurements, the model fitted to them, the best batch, and
goodput.

Goodput is throughput times statistical efficiency (Pollux, OSDI'21, equations 1 to 10). This
package knows no server and no other job. A shape is a GPU type, a number of servers and a number of
replicas.

Open `goodput.py` for the formulas, `models.py` for what is fitted to a job, and `estimates.py` for
what the rest of gpq asks.
"""
