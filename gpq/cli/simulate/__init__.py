"""`gpq simulate`: options to runs, runs to tables."""
