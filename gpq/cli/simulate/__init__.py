"""`gpq simulate`: from options to runs, and from runs to tables."""
