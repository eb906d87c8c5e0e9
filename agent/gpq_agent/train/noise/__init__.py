"""Squared norms in, noise scale and gain out."""
