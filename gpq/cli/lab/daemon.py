"""`gpq daemon`: starts, stops and shows the daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq import outward
from gpq.cli import output
from gpq.cli.typer_app import Json, frame
from gpq.client import daemon_control
from gpq.views.plain import duration

app = frame()
LINES = typer.Option("--lines", "-n", metavar="N", min=1, help="Show this many of the last lines.")
METRICS = typer.Option(
    "--metrics",
    metavar="[ADDR:]PORT",
    help=(
        "Serve Prometheus metrics there until this daemon stops. To serve them always, set"
        " `metrics` in config.toml."
    ),
    show_default=False,
)
METRICS_AGAIN = "tried again every 10 s"
FOLLOW = typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")


@app.callback(
    help=(
        "Start, stop and show the daemon. Any command starts it if it is not running. Jobs keep"
        " running without it."
    )
)
def daemon() -> None:
    """Make it a group of commands."""


@app.command()
def start(metrics: Annotated[str, METRICS] = "") -> int:
    """Start the daemon if it is not running.

    \b
    Example:
      gpq daemon start
      gpq daemon start --metrics 9464
    """
    is_new = daemon_control.start(metrics)
    info = daemon_control.status()
    output.say(f"daemon {'started' if is_new else 'is already running'} (pid {info.pid})")
    if not info.metrics:
        return 0
    if info.metrics_problem:
        output.failure(f"cannot serve metrics: {info.metrics_problem}", METRICS_AGAIN)
        return 1 if metrics else 0
    output.say(f"metrics are at {info.metrics}")
    _warn_if_open(info.metrics)
    return 0


def _warn_if_open(url: str) -> None:
    if not outward.address(url.removeprefix("http://").removesuffix("/metrics")).private:
        output.note(f"{url} is reachable from other machines: {outward.OPEN}")


@app.command()
def stop() -> None:
    """Stop the daemon. Jobs keep running, and the next daemon finds them again.

    \b
    Example:
      gpq daemon stop
    """
    output.say(
        "daemon stopped, jobs keep running" if daemon_control.stop() else "no daemon is running"
    )


@app.command()
def status(json: Json = False) -> None:
    """Show if the daemon is running, its version, its uptime and its rounds. Never starts it.
    Exit code 3 if no daemon is running.

    \b
    Example:
      gpq daemon status
    """
    info = daemon_control.status()
    if json:
        output.emit(info)
        return
    metrics = info.metrics or "not served"
    if info.metrics and info.metrics_problem:
        metrics = f"not served: {info.metrics_problem}, {METRICS_AGAIN}"
    rounds = f", {info.round_ms_median:.1f} ms each" if info.round_ms_median is not None else ""
    output.say(
        f"daemon {info.version} running (pid {info.pid}) for {duration(info.uptime_seconds)}",
        f"  state     {info.home}",
        f"  socket    {info.socket}",
        f"  policy    {info.policy}, a round at least every {info.interval:g} s",
        f"  rounds    {info.rounds}{rounds}",
        f"  jobs      {info.jobs_live} live, {info.jobs_total} in total",
        "  servers  "
        f" {', '.join(f'{name} {state}' for name, state in sorted(info.nodes.items())) or 'none'}",
        f"  memory    {info.memory_mib:.0f} MiB",
        f"  metrics   {metrics}",
    )
    if info.metrics:
        _warn_if_open(info.metrics)
    if info.config_changed:
        output.note(f"{daemon_control.CHANGED}: {daemon_control.RESTART}")


@app.command()
def logs(lines: Annotated[int, LINES] = 100, follow: Annotated[bool, FOLLOW] = False) -> None:
    """Show the log of the daemon.

    \b
    Example:
      gpq daemon logs -n 20 -f
    """
    output.say(*daemon_control.logs(lines))
    if follow:
        for line in daemon_control.follow():
            output.say(line)
