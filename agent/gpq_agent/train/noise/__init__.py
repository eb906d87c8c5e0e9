"""Turns squared norms into noise scale and gain."""
