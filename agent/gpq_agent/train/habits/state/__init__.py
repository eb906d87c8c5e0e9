"""What a loop keeps that replicas and checkpoints do not share."""
