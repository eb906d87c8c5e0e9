"""What gpq may do to a job: accumulate, split, resize, retune. Habits of its loop take some of
these freedoms away.

A habit is what the training library saw or `gpq check` proved. Each habit takes named freedoms
away. The rest limits the shapes and batches that a policy may offer. Nothing here detects a habit.

Open `freedoms.py` first.
"""
