"""What is on its way for one attempt that is about to start, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpq.core.feasibility.checkpoints import Staging
from gpq.core.model.actions import Launch
from gpq.core.model.units import Seconds
from gpq.daemon.files.transfer import Gauge


@dataclass
class Task:
    """Written by the threads of its attempt, read by any."""

    launch: Launch
    began: Seconds
    state: str = "running"  # "running", "done", "failed"
    what: str = ""  # what is copied, and from where
    note: str = ""  # what it waits for before there are transfers
    gauges: list[Gauge] = field(default_factory=list)

    def progress(self) -> Staging | None:
        """None in its first moment, when it is not yet known what it is."""
        if not self.what:
            return None
        gauges = list(self.gauges)
        notes = [gauge.note for gauge in gauges if gauge.note]
        return Staging(
            self.what,
            sum(gauge.progress for gauge in gauges),
            sum(gauge.total for gauge in gauges),
            sum(gauge.rate for gauge in gauges),
            notes[0] if notes else self.note,
        )
