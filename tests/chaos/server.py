"""Full-size runs of what happens to servers: partitions, reboots, dead agents and supervisors."""

from __future__ import annotations
