"""Side by side: what Slurm, task-spooler and gpq keep if their controller is killed or their
network is cut."""
