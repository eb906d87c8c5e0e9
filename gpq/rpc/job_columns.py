"""The columns of a job, one row each. This is the only place that declares one.

The table feeds
- `gpq status` and `gpq top` (`gpq.views.queue`, `gpq.views.top_tables`),
- the conditions of queries and their order (`gpq.control.query_language`),
- the tables in docs/jobs.md and docs/many-jobs.md, and the help of `gpq status`.

`gpq status` reads it in a moment, so it imports nothing.
"""

# kind: what a query compares, for docs/many-jobs.md
KINDS = {
    "text": "text, without regard to case",
    "whole": "whole numbers",
    "count": "whole numbers",  # 0 is shown as -
    "size": "whole numbers",  # 0 means that it is not known
    "number": "numbers, as in `gpq status` and `gpq top`",
    "ratio": "numbers, as in `gpq status` and `gpq top`",
    "share": "numbers from 0 to 1, or percentages",
    "span": "times, as in `gpq status`",
    "moment": "moments, only to sort by",
}


class JobColumn:
    """A value of a job. With a title, it is a column of the `screens`: status, top, and once, which
    is `gpq top --once`."""

    __slots__ = ("field", "keep", "kind", "least", "meaning", "name", "screens", "title")

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
        meaning: str = "",
    ) -> None:
        self.name = name  # in queries
        self.field = field  # of JobView
        self.kind = kind
        self.title = title
        self.keep = keep  # on a narrow terminal, the columns with the lowest numbers are dropped
        self.least = least  # the width that it may be cut to, 0: it is not cut
        self.screens = screens.split() if title else []
        self.meaning = meaning  # for docs/jobs.md, or without a title for docs/many-jobs.md


ROWS = (
    JobColumn("id", "id", "whole", "ID", 99, meaning=(
        "The number of the job. Four or more jobs of an array that wait for the same thing share"
        " one row, such as `7-104`"
    )),
    JobColumn("name", "name", "text", "NAME", 80, least=8, meaning=(
        "Its name. For a job of an array also the index or the values of the sweep: `train[3]`,"
        " `train[lr=0.1]`. A shared row has all indices: `train[0-3]`"
    )),
    JobColumn("user", "user", "text", "USER", 63, least=6, meaning=(
        "The account that submitted it. On a narrow terminal gpq leaves this column out if all jobs"
        " belong to one user"
    )),
    JobColumn("state", "state", "text", "STATE", 98, meaning="One of the states below"),
    JobColumn("server", "placement", "text", "GPUS", 70, least=14, screens="status", meaning=(
        "The GPUs it holds: server and numbers, such as `gpu1:0-2,5 gpu2:1`. On a server without"
        " GPUs these are CPU slots"
    )),
    JobColumn("gpus", "gpus", "count", "GPUS", 70, screens="top once"),
    JobColumn("batch", "total_batch", "size", "BATCH", 45, meaning=(
        "The batch size that it trains with now, over all its GPUs"
    )),
    JobColumn("goodput", "goodput", "number", "GOODPUT", 60, meaning=(
        "Examples per second that are as useful as at the base batch size: throughput times"
        " statistical efficiency. It needs the training library. It uses the latest measured"
        " throughput, so it differs from the curve in `gpq why`, which comes from the job's model"
    )),
    JobColumn("speedup", "speedup", "ratio", "SPEEDUP", 50, screens="status", meaning=(
        "Its goodput now, divided by its goodput on its"
        " [fair share](teams.md#fair-share-speedup-and-rho) of the GPUs. `1x` is as fast as on the"
        " fair share. Both come from the model of the job, so GOODPUT alone does not tell it. `-`"
        " until gpq has measured the job on its fair share"
    )),
    JobColumn("efficiency", "efficiency", "share", "EFF", 47, screens="top once"),
    JobColumn("progress", "progress", "share", "DONE", 55, meaning=(
        "How much of its work it has done, if the script says how much there is: `job.epochs(N)` or"
        " `job.steps(N)`. Queries and `--json` call it `progress`"
    )),
    JobColumn("eta", "eta_seconds", "span", "ETA", 52, meaning=(
        "The time it still needs, at its present GOODPUT. With a fixed batch size or"
        " `job.epochs(N, passes=True)`, at its present throughput"
    )),
    JobColumn("run", "run_seconds", "span", "RUN", 51, screens="status", meaning=(
        "How long it has run, in all attempts"
    )),
    JobColumn("throughput", "throughput", "number", "THRUPUT", 25, screens="top once"),
    JobColumn("restarts", "restarts", "whole", "RESTARTS", 22, screens="top once"),
    JobColumn("priority", "priority", "whole", "PRIO", 20, screens="top"),
    JobColumn("age", "age_seconds", "span", "AGE", 10, screens="status top", meaning=(
        "The time since its submission. For an ended job, the time from its submission to its end"
    )),
    JobColumn("reason", "reason", "text", "REASON", 65, least=12, meaning=(
        "Why it waits, what is wrong with it, or how it ended. A shared row begins with the number"
        " of jobs: `4 jobs: after job 3` are four jobs that wait until job 3 succeeds"
    )),
    JobColumn("tag", "tags", "text"),
    JobColumn("kind", "level", "text", meaning=(
        "text: `black-box`, `signal`, `script`, `resizable` or `adaptive`"
    )),
    JobColumn("command", "command", "text"),
    JobColumn("array", "array", "whole"),
    JobColumn("index", "index", "whole"),
    JobColumn("rho", "rho", "ratio", meaning=(
        "the [finish-time fairness](teams.md#fair-share-speedup-and-rho)"
    )),
    JobColumn("attempt", "attempt", "whole"),
    JobColumn("resizes", "resizes", "whole"),
    JobColumn("exit", "exit_status", "whole", meaning="the exit code"),
    JobColumn("submitted", "submitted_at", "moment"),
    JobColumn("started", "started_at", "moment"),
    JobColumn("ended", "ended_at", "moment"),
)  # fmt: skip
COLUMNS = {column.name: column for column in ROWS}
FIELDS = [column.name for column in ROWS if column.kind != "moment"]  # that conditions compare


def shown_on(screen: str) -> list[JobColumn]:
    return [column for column in ROWS if screen in column.screens]
