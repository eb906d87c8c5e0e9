"""Whole or absent: what a checkpoint holds, and how it returns on any number of replicas."""
