"""Commands about jobs, one file per command."""
