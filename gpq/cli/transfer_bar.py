"""On a terminal, a bar on stderr for the files that are copied to the servers of a job before it
starts."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from gpq.cli import output
from gpq.client.following import BEGINNING
from gpq.core.feasibility.checkpoints import Staging
from gpq.rpc.job_answers import JobView
from gpq.views import plain

CELLS = 24
# seconds between two updates: while the bar is shown, and before the job has started
SHORT_PAUSE, LONG_PAUSE = 0.5, 3.0


class Bar:
    """Call `show` after every update, and `clear` before you write anything else. Does nothing if
    stderr is not a terminal."""

    def __init__(self) -> None:
        self.watched = sys.stderr.isatty()
        self._drawn = False
        self._starting = True

    def patience(self, longest: float) -> float:
        """Seconds until the next update."""
        if not self.watched or not self._starting:
            return longest
        return min(longest, SHORT_PAUSE if self._drawn else LONG_PAUSE)

    def show(self, jobs: Iterable[JobView]) -> None:
        """Show the first job that waits for files."""
        views = list(jobs)
        self._starting = any(job.state in BEGINNING for job in views)
        staging_job = next((job for job in views if job.staging is not None), None)
        if staging_job is None or not self.watched:
            self.clear()
            return
        text = line(
            staging_job, plain.terminal_width() or 80, "█" if plain.ellipsis() == "…" else "#"
        )
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
        self._drawn = True

    def note(self, *lines: str) -> None:
        """Print notes on stderr."""
        self.clear()
        output.note(*lines)

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


def line(job: JobView, width: int, full: str) -> str:
    """``job 4 [#### ] brings its checkpoint from a: 1 GB of 2 GB, 80 MB/s``, cut to the width."""
    staging = job.staging
    if staging is None:
        return ""
    progress = str(Staging(staging.what, staging.done, staging.total, staging.rate, staging.note))
    share = min(staging.done / staging.total, 1.0) if staging.total else 0.0
    cells = (full * int(CELLS * share)).ljust(CELLS)
    return plain.safe(f"job {job.id} [{cells}] {progress}")[: width - 1]
