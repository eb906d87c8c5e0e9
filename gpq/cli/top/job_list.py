"""The list of jobs in `gpq top`: the rows in their order, and the cursor. It stays on its job, or
moves to a neighbour when the job is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import RenderableType

from gpq.rpc.daemon_answers import TopView
from gpq.rpc.job_answers import JobView
from gpq.views import interactive, job_columns
from gpq.views.utilisation import Past


class JobList:
    """The view of the latest jobs."""

    def __init__(self, filter: str) -> None:
        self.rows: list[JobView] = []
        self._look = job_columns.ListView(filter=filter)
        self._order_key: object = None  # what `rows` were made from

    @property
    def filter(self) -> str:
        return self._look.filter

    def filter_by(self, text: str) -> None:
        self._look = replace(self._look, filter=text, first=0)

    def restore_filter(self, text: str) -> None:
        """Go back to the filter whose rows are shown."""
        self._look = replace(self._look, filter=text)

    def take_in(self, jobs: Sequence[JobView], answer_time: float) -> None:
        order_key = (answer_time, self._look.sort, self._look.descending, self._look.filter)
        if order_key == self._order_key:
            return
        position, self._order_key = interactive.place(self.rows, self._look), order_key
        self.rows = interactive.ordered(jobs, self._look)
        if self.rows and all(job.id != self._look.selected for job in self.rows):
            self._select(min(position, len(self.rows) - 1))

    def current(self) -> JobView | None:
        """The job under the cursor."""
        return self.rows[interactive.place(self.rows, self._look)] if self.rows else None

    def move(self, step: int) -> None:
        if self.rows:
            position = interactive.place(self.rows, self._look) + step
            self._select(min(max(position, 0), len(self.rows) - 1))

    def _select(self, position: int) -> None:
        self._look = replace(self._look, selected=self.rows[position].id)

    def sort(self, step: int) -> None:
        """Sort by the column `step` places to the right."""
        heads = job_columns.heads(self.rows, "top", self._look.sort)
        names = ["", *(head.name for head in heads)]
        index = names.index(self._look.sort) if self._look.sort in names else 0
        self._look = replace(self._look, sort=names[(index + step) % len(names)], first=0)

    def reverse(self) -> None:
        column = self._look.sort or "id"
        self._look = replace(self._look, sort=column, descending=not self._look.descending)

    def room(self, view: TopView, height: int) -> int:
        """Number of visible rows."""
        return interactive.room_for_jobs(view, len(self.rows), height)

    def picture(self, view: TopView, samples: Past, width: int, height: int) -> RenderableType:
        first = interactive.first_row(self.rows, self._look, self.room(view, height))
        self._look = replace(self._look, first=first)
        return interactive.picture(view, self.rows, self._look, samples, width, height)
