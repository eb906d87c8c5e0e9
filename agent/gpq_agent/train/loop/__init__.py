"""What a script does with its job, what happens in a step, and what an attempt has whatever its
loop does, the same on every replica.

`loop.py` is the contract: how a loop, or the adapter of a framework, takes its steps. `boundary.py`
runs between two of them. `engine.py` puts the parts together, and `job.py` is what a script calls.
"""
