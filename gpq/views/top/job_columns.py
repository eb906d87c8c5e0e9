"""The columns of jobs in both forms of `gpq top`: their contents, which ones are empty, and whether
the reason fits. Draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.text import Text

from gpq.rpc.job_answers import JobView
from gpq.views import plain
from gpq.views.plain import duration, number, safe
from gpq.views.queue import named, percent, remark

STYLES = {
    "running": "green",
    "starting": "cyan",
    "stopping": "cyan",
    "pending": "yellow",
    "held": "magenta",
    "failed": "red",
    "timeout": "red",
}
COLUMNS = (  # with the minimum width of the terminal for each column
    ("job", 0),
    ("name", 0),
    ("user", 64),
    ("state", 0),
    ("GPUs", 0),
    ("batch", 64),
    ("goodput", 40),
    ("eff", 72),
    ("done", 56),
    ("ETA", 64),
    ("thruput", 100),
    ("restarts", 100),
    ("prio", 110),
    ("age", 120),
)
RIGHT = "job GPUs batch goodput eff done ETA thruput restarts prio age"
# a column that is empty for all jobs is left out
CONTENT: Mapping[str, Callable[[JobView], bool]] = {
    "batch": lambda job: bool(job.total_batch and job.gpus),
    "goodput": lambda job: job.goodput is not None,
    "eff": lambda job: job.efficiency is not None,
    "done": lambda job: job.progress is not None,
    "ETA": lambda job: job.eta_seconds is not None,
    "thruput": lambda job: job.throughput is not None,
}
# columns that make room for the reason, in this order
YIELDING = ("age", "prio", "restarts", "thruput", "user")
FRAME, CURSOR = 4, 2  # width of a panel's frame, and of the cursor
NAME = 24  # longest name next to a reason
GOOD, REASON = 32, 18  # width of a reason: wanted, and minimum


def titles(
    jobs: Sequence[JobView], width: int, last: str = "restarts", sort: str = ""
) -> list[str]:
    """The columns up to `last` that fit and are not empty. `sort` always stays."""
    names = [title for title, _ in COLUMNS]
    last_index = names.index(last)
    return [
        title
        for index, (title, least) in enumerate(COLUMNS)
        if index <= last_index and width >= least
        if title == sort or title not in CONTENT or any(map(CONTENT[title], jobs))
    ]


def with_reason(
    names: Sequence[str],
    jobs: Sequence[JobView],
    cells: Sequence[Mapping[str, str | Text]],
    width: int,
    sort: str = "",
) -> tuple[list[str], int]:
    """`names` with "reason" at the end if it helps, without the columns that make room for it, and
    the width of the reason. The width is 0 if no job needs a reason or there is no room. `cells`
    are those of the visible rows."""
    longest = max((plain.width(str(row["reason"])) for row in cells), default=0)
    if not longest:
        return list(names), 0
    sizes = {name: _size(name, cells, sort) for name in names}
    sizes["name"] = min(sizes["name"], NAME + 1)
    yielding = _yielding_names(jobs, sort)
    for least in (min(longest, GOOD), min(longest, REASON)):
        for remaining_names in _ever_fewer(names, yielding):
            room = width - FRAME - CURSOR - sum(sizes[title] for title in remaining_names)
            if room >= least:
                return [*remaining_names, "reason"], min(room, longest)
    return list(names), 0


def _yielding_names(jobs: Sequence[JobView], sort: str) -> list[str]:
    """The columns that may go: never the sorted one, and the user only if it is the same for
    all."""
    has_one_user = len({job.user for job in jobs}) == 1
    return [name for name in YIELDING if name != sort and (name != "user" or has_one_user)]


def _ever_fewer(names: Sequence[str], yielding: Sequence[str]) -> Iterator[list[str]]:
    """All of `names`, then with fewer and fewer of the columns that may go."""
    remaining_names = list(names)
    yield remaining_names
    for name in yielding:
        if name in remaining_names:
            remaining_names.remove(name)
            yield remaining_names


def _size(name: str, cells: Sequence[Mapping[str, str | Text]], sort: str) -> int:
    """Its width, including a gap and the arrow of the sorted column."""
    title = len(name) + (name == sort)
    return max(title, *(plain.width(str(row[name])) for row in cells)) + 1


def cells(job: JobView) -> dict[str, str | Text]:
    """The cells of one row, by title."""
    row = {"exit_status": job.exit_status, "state": job.state, "reason": job.reason}
    return {
        "job": str(job.id),
        "name": named({"name": job.name, "index": job.index, "params": job.params}),
        "user": safe(job.user),
        "state": state_of(job),
        "GPUs": str(job.gpus or "-"),
        "batch": str((job.gpus and job.total_batch) or "-"),
        "goodput": number(job.goodput),
        "eff": percent(job.efficiency),
        "done": percent(job.progress),
        "ETA": duration(job.eta_seconds),
        "thruput": number(job.throughput),
        "restarts": str(job.restarts),
        "prio": str(job.priority),
        "age": duration(job.age_seconds),
        "reason": remark(row),
    }


def narrowed(row: Mapping[str, str | Text], reason: int) -> dict[str, str | Text]:
    """`row` cut to fit next to a reason of this width, or unchanged for 0."""
    if not reason:
        return dict(row)
    mark = plain.ellipsis()
    return {
        **row,
        "name": plain.cut(str(row["name"]), NAME, mark),
        "reason": plain.cut(str(row["reason"]), reason, mark),
    }


def state_of(job: JobView) -> Text:
    """The state. `unknown 40s`: the server is silent. `hung 90s`: no replica makes progress.
    `running nan`: a metric is not finite. `running !3`: the others wait for replica 3."""
    if job.unknown_seconds is not None:
        return Text(f"unknown {duration(job.unknown_seconds)}", style="red")
    if job.hung_seconds is not None:
        return Text(f"hung {duration(job.hung_seconds)}", style="red")
    if job.diverged and job.ended_at is None:
        return Text(f"{safe(job.state)} {safe(job.diverged[0].value)}", style="red")
    if job.stragglers:  # the first to look at
        return Text(f"{safe(job.state)} !{job.stragglers[0]}", style="yellow")
    return Text(safe(job.state), style=STYLES.get(job.state, ""))
