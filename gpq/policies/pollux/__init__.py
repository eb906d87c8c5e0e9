"""Pollux as published (OSDI'21): its model, its problem and its genetic search, unchanged."""
