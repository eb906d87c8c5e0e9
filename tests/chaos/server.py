"""Full-size runs of what happens to servers and what runs there. The modules named here have them."""

from __future__ import annotations

from tests.chaos import servers, starts, stress, supervisors, zoo

MODULES = (servers, starts, stress, supervisors, zoo)
