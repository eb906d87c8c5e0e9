"""Commands about jobs, with one small file for each command."""
