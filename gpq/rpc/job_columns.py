"""The columns of a job, one row each. This is the only place that declares one.

The table feeds
- `gpq status` and `gpq top` (`gpq.views.queue`, `gpq.views.top_tables`),
- the conditions of queries and their order (`gpq.control.query_language`),
- the tables in docs/jobs.md and docs/many-jobs.md, which tests/generated/pages.py explains.

`gpq status` reads it in a moment, so it imports nothing.
"""


class JobColumn:
    """A value of a job. With a title, it is a column of the `screens`: status, top, and once, which
    is `gpq top --once`."""

    __slots__ = ("field", "keep", "kind", "least", "name", "screens", "title")

    def __init__(
        self,
        name: str,
        field: str,
        kind: str,
        title: str = "",
        keep: int = 0,
        *,
        least: int = 0,
        screens: str = "status top once",
    ) -> None:
        self.name = name  # in queries
        self.field = field  # of JobView
        self.kind = kind
        self.title = title
        self.keep = keep  # on a narrow terminal, the columns with the lowest numbers are dropped
        self.least = least  # the width that it may be cut to, 0: it is not cut
        self.screens = screens.split() if title else []


ROWS = (
    JobColumn("id", "id", "whole", "ID", 99),
    JobColumn("name", "name", "text", "NAME", 80, least=8),
    JobColumn("user", "user", "text", "USER", 63, least=6),
    JobColumn("state", "state", "text", "STATE", 98),
    JobColumn("server", "placement", "text", "GPUS", 70, least=14, screens="status"),
    JobColumn("gpus", "gpus", "count", "GPUS", 70, screens="top once"),
    JobColumn("batch", "total_batch", "size", "BATCH", 45),
    JobColumn("goodput", "goodput", "number", "GOODPUT", 60),
    JobColumn("speedup", "speedup", "ratio", "SPEEDUP", 50, screens="status"),
    JobColumn("efficiency", "efficiency", "share", "EFF", 47, screens="top once"),
    JobColumn("progress", "progress", "share", "DONE", 55),
    JobColumn("eta", "eta_seconds", "span", "ETA", 52),
    JobColumn("run", "run_seconds", "span", "RUN", 51, screens="status"),
    JobColumn("throughput", "throughput", "number", "THRUPUT", 25, screens="top once"),
    JobColumn("restarts", "restarts", "whole", "RESTARTS", 22, screens="top once"),
    JobColumn("priority", "priority", "whole", "PRIO", 20, screens="top"),
    JobColumn("age", "age_seconds", "span", "AGE", 10, screens="status top"),
    JobColumn("reason", "reason", "text", "REASON", 65, least=12),
    JobColumn("tag", "tags", "text"),
    JobColumn("kind", "level", "text"),
    JobColumn("command", "command", "text"),
    JobColumn("array", "array", "whole"),
    JobColumn("index", "index", "whole"),
    JobColumn("rho", "rho", "ratio"),
    JobColumn("attempt", "attempt", "whole"),
    JobColumn("resizes", "resizes", "whole"),
    JobColumn("exit", "exit_status", "whole"),
    JobColumn("submitted", "submitted_at", "moment"),
    JobColumn("started", "started_at", "moment"),
    JobColumn("ended", "ended_at", "moment"),
)  # fmt: skip
COLUMNS = {column.name: column for column in ROWS}
FIELDS = [column.name for column in ROWS if column.kind != "moment"]  # that conditions compare


def shown_on(screen: str) -> list[JobColumn]:
    return [column for column in ROWS if screen in column.screens]
