"""`gpq import`: jobs from Slurm scripts and from task-spooler."""
