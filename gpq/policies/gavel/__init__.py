"""Gavel as published (OSDI'20): shares of time on each type of GPU, for four objectives."""
