"""The table of `gpq status`: from rows of the daemon (rpc JobView, decoded as dictionaries) to
lines of text."""

from gpq.views.plain import Column, Head, duration, number, safe, table, wrapped

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from typing import Any

Row = dict[str, "Any"]
MOST_NOTES = 6  # lines of notes on more jobs than `FOLDED`
FOLDED = 4  # this many jobs of an array with the same reason become one row
ENDED = ("completed", "failed", "cancelled", "timeout")
HEADS = (  # the columns between state and reason
    Head("GPUS", 70, least=14),
    Head("BATCH", 45, right=True),
    Head("GOODPUT", 60, right=True),
    Head("SPEEDUP", 50, right=True),
    Head("DONE", 55, right=True),
    Head("ETA", 52, right=True),
    Head("RUN", 51, right=True),
    Head("AGE", 40, right=True),
)


def where(parts: list[Row]) -> str:
    """`a:0-2,5 b:1`: servers and indices of GPUs."""
    return " ".join(f"{safe(part['node'])}:{_which(part)}" for part in parts)


def _which(part: Row) -> str:
    """The indices, or the names of GPUs whose server has not reported yet."""
    if any(index < 0 for index in part["indices"]):
        return ",".join(map(safe, part["devices"]))
    return ranges(part["indices"])


def ranges(indices: list[int]) -> str:
    """0,1,2,5 as 0-2,5."""
    if len(indices) == 1:
        return str(indices[0])
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(_range(low, high) for low, high in runs)


def _range(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low}-{high}"


def batch(row: Row) -> str:
    """The batch size, such as `256`."""
    return str(row["total_batch"] or "-")


def remark(row: Row) -> str:
    """Why the job waits, or how it ended."""
    code, reason = row["exit_status"], safe(row["reason"])
    if row["state"] == "cancelled":  # it is only the code of its signal
        return reason
    if not code or row["state"] not in ENDED or f"exit {code}" in reason:
        return reason
    if reason:
        return f"{reason} (exit {code})"
    return f"exit {code}"


def notes(rows: list[Row]) -> list[str]:
    """`job 3: line` for each note that the reasons do not say. Jobs with the same one share a line.
    Of many jobs only `MOST_NOTES`, those of new jobs and the newest of each job first."""
    names_by_note: dict[str, list[str]] = {}
    rank_by_note: dict[str, tuple[int, int]] = {}
    for position, row in enumerate(rows):
        own_notes = [note for note in row.get("notes", ()) if note not in row["reason"]]
        for place, note in enumerate(own_notes):
            names_by_note.setdefault(note, []).append(str(row["id"]))
            rank = (len(own_notes) - place, -position)
            rank_by_note[note] = min(rank, rank_by_note.get(note, rank))
    order = [*names_by_note]
    if len(rows) > FOLDED:
        order = sorted(order, key=rank_by_note.__getitem__)[:MOST_NOTES]
    lines = [f"{_jobs(names_by_note[note])}: {safe(note)}" for note in order]
    hidden = len(names_by_note) - len(order)
    return [*lines, f"{hidden} more: `gpq show JOB` has all notes of a job"] if hidden else lines


def _jobs(names: list[str]) -> str:
    """`job 3`, `jobs 3, 4, 6, 7 and 5 others`."""
    remainder = f" and {len(names) - FOLDED} others" if len(names) > FOLDED else ""
    return f"job{'s' if len(names) > 1 else ''} {', '.join(names[:FOLDED])}{remainder}"


def named(row: Row) -> str:
    """The name. A job of an array also shows what makes it differ: `train[3]`, `train[lr=0.1
    wd=0]`."""
    name, params = safe(row["name"]) or "-", row.get("params")
    if row.get("index") is None:
        return name
    if not params:
        return f"{name}[{safe(str(row['index']))}]"
    difference = " ".join(f"{key}={value}" for key, value in params.items())
    return f"{name}[{safe(difference)}]"


def folded(rows: list[Row]) -> list[Row]:
    """The rows, with waiting jobs of an array that have the same reason in one row."""
    rows_to_show: list[Row] = []
    run: list[Row] = []
    for row in [*rows, {}]:
        if run and not _alike(run[-1], row):
            rows_to_show += run if len(run) < FOLDED else [_row_of(run)]
            run = []
        if row.get("alike", 1) > 1:  # the daemon has combined them already
            rows_to_show.append(_of_many(row))
        elif row:
            run.append(row)
    return rows_to_show


def _alike(first: Row, second: Row) -> bool:
    keys = ("array", "state", "reason", "user", "notes")
    return (
        first.get("array") is not None
        and first.get("alike", 1) == second.get("alike", 1) == 1
        and first["state"] in ("pending", "held")
        and all(first.get(k) == second.get(k) for k in keys)
    )


def _row_of(run: list[Row]) -> Row:
    first, last = run[0], run[-1]
    name = {**first, "params": {}, "index": ranges([row["index"] for row in run])}
    return {
        **name,
        "id": f"{first['id']}-{last['id']}",
        "reason": f"{len(run)} jobs: {first['reason']}",
    }


def _of_many(row: Row) -> Row:
    name = {**row, "params": {}, "index": f"{row['index']}-{row['last_index']}"}
    return {
        **name,
        "id": f"{row['id']}-{row['last']}",
        "reason": f"{row['alike']} jobs: {row['reason']}",
    }


def columns(rows: list[Row], limit: int = 0) -> list[Column]:
    """The columns of `gpq status`. The most important ones are dropped last, and the reason may use
    two fifths of `limit`."""
    cells = [_cells(row) for row in rows]
    user = Head("USER", 63, least=6)
    if len({row["USER"] for row in cells}) <= 1:
        user = Head("USER", 30)  # dropped first
    heads = (
        Head("ID", 99, right=True),
        Head("NAME", 80, least=8),
        user,
        Head("STATE", 98),
        *HEADS,
        Head("REASON", 65, least=max(12, 2 * limit // 5)),
    )
    return [head.column(cells) for head in heads]


def _cells(row: Row) -> dict[str, str]:
    """The cells of one job, by title."""
    return {
        "ID": str(row["id"]),
        "NAME": named(row),
        "USER": safe(row["user"]),
        "STATE": safe(row["state"]),
        "GPUS": where(row["placement"]) or "-",
        "BATCH": batch(row),
        "GOODPUT": number(row["goodput"]),
        "SPEEDUP": number(row["speedup"] if row["gpus"] else None, "x"),
        "DONE": percent(row["progress"]),
        "ETA": duration(row["eta_seconds"]),
        "RUN": duration(row["run_seconds"] if row["started_at"] else None),
        "AGE": duration(row["age_seconds"]),
        "REASON": remark(row),
    }


def percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.0f}%"


def lines(
    answer: Row, limit: int = 0, *, colour: bool = False, mark: str = "…", fold: bool = False
) -> list[str]:
    """The whole answer (rpc JobList) as lines of at most `limit` columns. `fold`: combine waiting
    jobs of an array."""
    rows = folded(answer["jobs"]) if fold else answer["jobs"]
    text = ["no jobs"]
    if rows:
        text = table(columns(rows, limit), limit, colour=colour, mark=mark)
    waiting_count = answer.get("hidden_waiting", 0)
    if waiting_count:
        text.append(f"and {waiting_count} more pending or held: gpq status state=pending,held")
    hidden_count = answer.get("hidden", 0)
    if hidden_count:
        text.append(f"and {hidden_count} more that ended: gpq status --all")
    for note in notes(rows):
        text += wrapped(note, limit, "note: ", "      ")
    hint = _where_failures_are_told(rows)
    if hint and (not limit or len(hint) <= limit):
        text.append(hint)
    return text


def _where_failures_are_told(rows: list[Row]) -> str:
    failed_jobs = [row["id"] for row in rows if row["state"] == "failed" and row["started_at"]]
    if len(failed_jobs) > 1:
        return "why a job failed: gpq logs JOB"
    if failed_jobs:
        return f"why job {failed_jobs[0]} failed: gpq logs {failed_jobs[0]}"
    return ""
