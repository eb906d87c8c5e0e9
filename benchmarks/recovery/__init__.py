"""Side by side: what Slurm, task-spooler and gpq keep when their controller is killed and when
their network is cut."""
