"""Which examples come next, and in which micro-batches."""
