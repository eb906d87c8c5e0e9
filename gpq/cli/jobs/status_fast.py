"""`gpq status`, the fast way: ask, draw, print. The typer command in `gpq.cli.jobs.status` ends
here too."""

import sys

from gpq.client import quick
from gpq.views import plain
from gpq.views.queue import TABLE, is_query, lines

EVERY = 1 << 40  # more than there can ever be
SCREEN = 200  # the most rows for waiting jobs, unless the user names jobs or asks for all


def show(
    jobs: list[str],
    *,
    json: bool = False,
    all: bool = False,
    color: str = "auto",
    user: str = "",
    states: list[str] | None = None,
    recent: int = 20,
) -> int:
    """Print the queue. Returns the exit status. Starts the daemon if it is not running."""
    query = [word for word in jobs if is_query(word)]
    jobs = [word for word in jobs if word not in query]
    request: dict[str, object] = {
        "jobs": jobs,
        "recent": recent,
        "user": user,
        "states": states or [],
        "query": query,
    }
    if all:
        request["recent"] = EVERY if json or query else TABLE
    elif not (json or jobs or query or states):
        request["waiting"] = SCREEN
    seconds = 300.0 if all and query else 30.0  # it searches all jobs
    if json:
        from gpq.client.stream import write_json  # imported only here, because it costs time

        write_json(quick.line("status", request), seconds)
        return 0
    try:
        result = quick.ask("status", request, seconds)
    except quick.NobodyListens:
        from gpq.client.autostart import ensure_daemon

        ensure_daemon()
        result = quick.ask("status", request, seconds)
    rows = lines(
        result,
        plain.terminal_width(),
        colour=plain.wants_colour(color),
        mark=plain.ellipsis(),
        fold=not jobs and not query,
    )
    rows.append("")
    sys.stdout.write("\n".join(rows))
    for warning in result.get("warnings", []):
        sys.stderr.write(f"note: {plain.safe(warning)}\n")
    return 0
