"""Which examples come next, in which micro-batches, and the proof that each was trained once."""
