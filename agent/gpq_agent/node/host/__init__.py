"""Facts about this machine: processes, network, users, limits, logs. This package knows nothing
about jobs."""
