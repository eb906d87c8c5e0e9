"""Everything that a script can do with its job, and what its calls assemble. Decides nothing."""
