"""Commands about jobs: one small file, one command."""
