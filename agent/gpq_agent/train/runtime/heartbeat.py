"""Where this replica is, readable while it hangs.

A few numbers in a small mapped file in the attempt's folder. A step writes them in about a
microsecond, without a system call or a thread. node/attempts/heartbeats.py reads them.
"""

import contextlib
import mmap
import os
import struct
import time
from typing import Optional

from gpq_agent import records, wire


class Heartbeat:
    """The heartbeat of one rank. Without a folder (no gpq), or on a full disk, it writes
    nothing."""

    def __init__(self, folder: Optional[str], rank: int) -> None:
        self._map: Optional[mmap.mmap] = None
        self._step, self._step_time = -1, 0.0
        self._layout = struct.Struct(wire.PULSE)
        self._pid = os.getpid()
        self._folder, self._name = folder, "{}{}".format(wire.RANK, rank)
        if folder:
            try:
                path = os.path.join(folder, self._name)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    # On a full disk a mapped write is a SIGBUS.
                    os.posix_fallocate(descriptor, 0, self._layout.size)
                    self._map = mmap.mmap(descriptor, self._layout.size)
                finally:
                    os.close(descriptor)
            except OSError:
                return
            self.beat(0, "starting")

    def beat(self, step: int, phase: str) -> None:
        """`step` optimizer steps are done. `phase`: one of wire.PHASES."""
        if self._map is None:
            return
        if step != self._step:
            self._step, self._step_time = step, time.clock_gettime(time.CLOCK_BOOTTIME)
        self._layout.pack_into(self._map, 0, self._pid, step, _NUMBERS[phase], self._step_time)

    def phase(self, phase: str) -> None:
        """Another phase of the same step."""
        if self._map is not None:
            _PHASE.pack_into(self._map, _PHASE_AT, _NUMBERS[phase])

    def others_wait(self, step: int) -> bool:
        """Does another replica of this server wait for this one, after the same number of steps?

        For rare use.
        """
        if self._map is None or self._folder is None:
            return False
        for name in os.listdir(self._folder):
            if name.startswith(wire.RANK) and name != self._name:
                path = os.path.join(self._folder, name)
                with contextlib.suppress(OSError, ValueError, struct.error):
                    with os.fdopen(records.open_plain(path), "rb") as stream:
                        _, steps, phase, _ = self._layout.unpack(stream.read(self._layout.size))
                    if steps == step and phase == _NUMBERS["arrived"]:
                        return True
        return False


_NUMBERS = {phase: number for number, phase in enumerate(wire.PHASES)}
_PHASE = struct.Struct("=q")
_PHASE_AT = struct.calcsize(wire.PULSE[:3])  # after pid and step
