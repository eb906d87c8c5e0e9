"""Imported once by the server from which replicas are forked: torch, and every loop."""

from .catalogue import load

load()
