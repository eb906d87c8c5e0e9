"""The table of `gpq status`: from rows of the daemon (rpc JobView, decoded as dictionaries) to
lines of text."""

from gpq.rpc.job_columns import JobColumn, shown_on
from gpq.views.plain import Column, duration, number, safe, table, wrap

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

Row = dict[str, "Any"]
MOST_NOTES = 6  # lines of notes on more jobs than `FOLDED`
MOST_MEMBERS = 8  # in the line about a team
FOLDED = 4  # this many jobs of an array with the same reason become one row
TABLE = 1000  # the most rows for ended jobs that `gpq status --all` shows
USER_FIRST = 5  # keeps the column of users for less long than any other
ENDED = ("completed", "failed", "cancelled", "timeout")


def where(parts: list[Row]) -> str:
    """`a:0-2,5 b:1`: servers and indices of GPUs."""
    texts = []
    for part in parts:
        gpus = ranges(part["indices"])
        if min(part["indices"], default=0) < 0:  # its server has not reported yet
            gpus = ",".join(map(safe, part["devices"]))
        texts.append(f"{safe(part['node'])}:{gpus}")
    return " ".join(texts)


def ranges(indices: list[int]) -> str:
    """0,1,2,5 as 0-2,5."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def remark(row: Row) -> str:
    """Why the job waits, or how it ended."""
    code, reason = row["exit_status"], safe(row["reason"])
    if row["state"] == "cancelled":  # it is only the code of its signal
        return reason
    if not code or row["state"] not in ENDED or f"exit {code}" in reason:
        return reason
    return f"{reason} (exit {code})" if reason else f"exit {code}"


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
    lines = []
    for note in order:
        names = names_by_note[note]
        jobs = f"job{'s' if len(names) > 1 else ''} {', '.join(names[:FOLDED])}"
        if len(names) > FOLDED:
            jobs += f" and {len(names) - FOLDED} others"
        lines.append(f"{jobs}: {safe(note)}")
    hidden = len(names_by_note) - len(order)
    return [*lines, f"{hidden} more: `gpq show JOB` has all notes of a job"] if hidden else lines


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


def fold_arrays(rows: list[Row]) -> list[Row]:
    """The rows, with waiting jobs of an array that have the same reason in one row."""
    rows_to_show: list[Row] = []
    run: list[Row] = []
    for row in [*rows, {}]:
        if run and not _alike(run[-1], row):
            if len(run) >= FOLDED:
                indices = ranges([one["index"] for one in run])
                run = [_shared_row(run[0], len(run), run[-1]["id"], indices)]
            rows_to_show += run
            run = []
        if row.get("alike", 1) > 1:  # the daemon has combined them already
            indices = f"{row['index']}-{row['last_index']}"
            rows_to_show.append(_shared_row(row, row["alike"], row["last"], indices))
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


def _shared_row(first: Row, jobs: int, last_id: int, indices: str) -> Row:
    """One row for jobs of an array."""
    return {
        **first,
        "params": {},
        "index": indices,
        "id": f"{first['id']}-{last_id}",
        "reason": f"{jobs} jobs: {first['reason']}",
    }


def columns(
    rows: list[Row],
    heads: "Sequence[JobColumn]",
    least: "Mapping[str, int]",
    one_user: int = USER_FIRST,
) -> list[Column]:
    """The columns `heads` of these jobs. `least`: widths that replace those of the table.
    `one_user`: when the column of users is dropped if all are the same."""
    drawn = []
    for head in heads:
        column = Column(
            head.title,
            cells(head, rows),
            head.keep,
            least=least.get(head.name, head.least),
            right=head.kind != "text",
        )
        if head.name == "user" and len(set(column.cells)) <= 1:
            column.keep, column.least = one_user, 0
        drawn.append(column)
    return drawn


def cells(head: JobColumn, rows: list[Row]) -> list[str]:
    own_text = OWN_TEXTS.get(head.name)
    if own_text is not None:
        return list(map(own_text, rows))
    text, field = TEXTS[head.kind], head.field
    return [text(row[field]) for row in rows]


def percent(share: float | None) -> str:
    return f"{100 * share:.0f}%" if share is not None else "-"


def _count(value: int | None) -> str:
    return str(value or "-")


# by kind
TEXTS: "dict[str, Callable[[Any], str]]" = {
    "text": safe,
    "whole": lambda value: "-" if value is None else str(value),
    "count": _count,
    "size": _count,
    "number": number,
    "ratio": lambda value: number(value, "x"),
    "share": percent,
    "span": duration,
}
# by name: columns that need more than their value
OWN_TEXTS: "dict[str, Callable[[Row], str]]" = {
    "name": named,
    "server": lambda row: where(row["placement"]) or "-",
    "speedup": lambda row: number(row["speedup"] if row["gpus"] else None, "x"),
    "run": lambda row: duration(row["run_seconds"] if row["started_at"] else None),
    "reason": remark,
}


def team_lines(team: Row, limit: int = 0) -> list[str]:
    """Who has how many GPUs in the team (rpc TeamView, decoded), and how many others wait."""
    own, *members = team["members"]
    texts = [f"{safe(row['member'])} {row['gpus']} ({row['floor']})" for row in members]
    if len(texts) > MOST_MEMBERS:
        texts[MOST_MEMBERS:] = [f"{len(texts) - MOST_MEMBERS} more: gpq team"]
    own_text = f"you hold {own['gpus']} of {team['gpus']} GPUs (floor {own['floor']})"
    text = wrap(f"team {safe(team['name'])}: {', '.join([own_text, *texts])}", limit, indent="  ")
    jobs = sum(row["waiting"] for row in members)
    remark = "1 job of others waits" if jobs == 1 else f"{jobs} jobs of others wait"
    return [*text, *wrap(remark, limit)] if jobs else text


def lines(
    answer: Row, limit: int = 0, *, colour: bool = False, mark: str = "…", fold: bool = False
) -> list[str]:
    """The whole answer (rpc JobList) as lines of at most `limit` columns. `fold`: combine waiting
    jobs of an array."""
    rows = fold_arrays(answer["jobs"]) if fold else answer["jobs"]
    text = team_lines(answer["team"], limit) if answer.get("team") else []
    if rows:
        least = {"reason": max(12, 2 * limit // 5)}
        text += table(columns(rows, shown_on("status"), least), limit, colour=colour, mark=mark)
    else:
        text.append("no jobs")
    waiting_count = answer.get("hidden_waiting", 0)
    if waiting_count:
        text.append(f"and {waiting_count} more pending or held: gpq status state=pending,held")
    hidden_count = answer.get("hidden", 0)
    if hidden_count:
        shown_count = sum(row["state"] in ENDED for row in rows)
        command = "gpq status --all" if shown_count < TABLE else "gpq status --all --json"
        text.append(f"and {hidden_count} more that ended: {command}")
    for note in notes(rows):
        text += wrap(note, limit, "note: ", "      ")
    failed_jobs = [row["id"] for row in rows if row["state"] == "failed" and row["started_at"]]
    hint = "why a job failed: gpq logs JOB"
    if len(failed_jobs) == 1:
        hint = f"why job {failed_jobs[0]} failed: gpq logs {failed_jobs[0]}"
    if failed_jobs and (not limit or len(hint) <= limit):
        text.append(hint)
    return text


def is_query(word: str) -> bool:
    """Whether a word is a condition, such as `user=ana` or `age>2h`. Names and selectors of jobs
    have no such signs."""
    return any(sign in word.replace("@~", "") for sign in "=~<>")
