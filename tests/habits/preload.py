"""Imports torch and every loop once, in the server that forks the replicas."""

from .catalogue import load

load()
