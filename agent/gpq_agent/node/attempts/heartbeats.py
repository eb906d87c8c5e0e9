"""How far the replicas of an attempt on this server are. Reads what their training library wrote,
without asking them."""

import itertools
import os
import struct
import time
from typing import List

from gpq_agent import records, wire

MOST_ENTRIES = 4096  # looked at in the folder, where a job may put any number


def pulses(folder: str) -> List[wire.Pulse]:
    """Pulses by rank. Leaves out processes without gpq's library, and invalid values."""
    layout = struct.Struct(wire.PULSE)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    heartbeats = []
    try:
        with os.scandir(folder) as entries:
            some = itertools.islice(entries, MOST_ENTRIES)
            names = [entry.name for entry in some if entry.name.startswith(wire.RANK)]
    except OSError:
        return []
    for name in names:
        rank = name[len(wire.RANK) :]
        try:
            with os.fdopen(records.open_plain(os.path.join(folder, name)), "rb") as stream:
                _, step, phase, since = layout.unpack(stream.read(layout.size))
            if 0 <= phase < len(wire.PHASES) and 0 <= since <= now:
                pulse = wire.Pulse(int(rank), step, wire.PHASES[phase], round(now - since, 1))
                if not wire.misfits(wire.Pulse, pulse._asdict()):
                    heartbeats.append(pulse)
        except (OSError, ValueError, struct.error):
            continue
    return sorted(heartbeats)
