"""What the daemon does with each request: reads from the newest snapshot, changes through the controller."""

from __future__ import annotations
