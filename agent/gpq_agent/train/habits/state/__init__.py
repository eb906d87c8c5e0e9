"""What a loop keeps, and what of it replicas and checkpoints do not share."""
