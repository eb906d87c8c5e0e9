"""Completion with the TAB key, and the scripts for the shells."""
