"""How a loop goes through epochs and batches."""
