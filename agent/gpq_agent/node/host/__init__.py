"""What this machine says of itself: processes, network, users, limits, logs. Knows nothing of
jobs."""
