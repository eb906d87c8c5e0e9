"""Checkpoints are whole or absent: what one holds, and how it returns on any number of replicas."""
