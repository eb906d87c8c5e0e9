"""What the agent answers to each request of wire.OPS, and which requests wait for something first.

Open `agent.py` first.
"""
