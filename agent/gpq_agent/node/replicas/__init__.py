"""The replicas of one attempt come together: on one server by `replicas.py`, across servers by
`rendezvous.py`.

Both run in the process that the shim has forked for the job.
"""
