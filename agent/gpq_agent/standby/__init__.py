"""The interpreter of a standby: it has imported torch, waits for an attempt, and then runs its
script as a new interpreter would.

It runs in the script's own environment, and stands on both the agent and the training library.
"""
