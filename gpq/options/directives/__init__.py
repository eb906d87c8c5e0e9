"""Options in the lines of scripts: gpq's own, and those of Slurm that have a meaning here."""
