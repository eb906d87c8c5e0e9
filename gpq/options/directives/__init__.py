"""Options that scripts carry in their lines: gpq's own, and those of Slurm that have a meaning
here."""
