"""`gpq import`: jobs from Slurm's scripts and from task-spooler's queue."""
