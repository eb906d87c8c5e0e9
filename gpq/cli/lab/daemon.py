"""`gpq daemon`: start, stop and look at the daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq import outward
from gpq.cli.shared import output
from gpq.cli.shared.typer_app import Json, frame
from gpq.client import daemon_control
from gpq.rpc.daemon_answers import DaemonInfo
from gpq.views.plain import duration

app = frame()
LINES = typer.Option("--lines", "-n", metavar="N", min=1, help="How many of the last lines.")
METRICS = typer.Option(
    "--metrics",
    metavar="[ADDR:]PORT",
    help=(
        "Serve Prometheus metrics there, for as long as this daemon runs; config.toml has the same"
        " for good."
    ),
    show_default=False,
)
METRICS_AGAIN = "tried again every 10 s"
FOLLOW = typer.Option("--follow", "-f", help="Go on, until Ctrl-C.")


@app.callback(
    help=(
        "Start, stop and look at the daemon. Any command starts it where none runs; jobs do not"
        " need it to run on."
    )
)
def daemon() -> None:
    """Make it a group of commands."""


@app.command()
def start(metrics: Annotated[str, METRICS] = "") -> int:
    """Start the daemon where none runs.

    \b
    Example:
      gpq daemon start
      gpq daemon start --metrics 9464
    """
    is_new = daemon_control.start(metrics)
    info = daemon_control.status()
    output.say(f"daemon {'started' if is_new else 'runs already'} (pid {info.pid})")
    if not info.metrics:
        return 0
    if info.metrics_problem:
        output.failure(f"metrics are not served: {info.metrics_problem}", METRICS_AGAIN)
        return 1 if metrics else 0
    output.say(f"metrics are at {info.metrics}")
    _warn_if_open(info.metrics)
    return 0


def _warn_if_open(url: str) -> None:
    if not outward.address(url.removeprefix("http://").removesuffix("/metrics")).private:
        output.note(f"{url} is no address of this machine alone: {outward.OPEN}")


@app.command()
def stop() -> None:
    """Stop the daemon. Jobs run on; the next daemon finds them again.

    \b
    Example:
      gpq daemon stop
    """
    output.say("daemon stopped; jobs run on" if daemon_control.stop() else "no daemon runs")


@app.command()
def status(json: Json = False) -> None:
    """Is the daemon there, which version, for how long, and how its rounds go? Starts none; exit
    code 3 when none runs.

    \b
    Example:
      gpq daemon status
    """
    info = daemon_control.status()
    if json:
        output.emit(info)
        return
    rounds = f", {info.round_ms_median:.1f} ms each" if info.round_ms_median is not None else ""
    output.say(
        f"daemon {info.version} runs (pid {info.pid}) for {duration(info.uptime_seconds)}",
        f"  state     {info.home}",
        f"  socket    {info.socket}",
        f"  policy    {info.policy}, a round at least every {info.interval:g} s",
        f"  rounds    {info.rounds}{rounds}",
        f"  jobs      {info.jobs_live} live, {info.jobs_total} in all",
        "  servers  "
        f" {', '.join(f'{name} {state}' for name, state in sorted(info.nodes.items())) or 'none'}",
        f"  memory    {info.memory_mib:.0f} MiB",
        f"  metrics   {_metrics(info)}",
    )
    if info.metrics:
        _warn_if_open(info.metrics)
    if info.config_changed:
        output.note(f"{daemon_control.CHANGED}: {daemon_control.RESTART}")


def _metrics(info: DaemonInfo) -> str:
    if not info.metrics:
        return "not served"
    if info.metrics_problem:
        return f"not served: {info.metrics_problem}; {METRICS_AGAIN}"
    return info.metrics


@app.command()
def logs(lines: Annotated[int, LINES] = 100, follow: Annotated[bool, FOLLOW] = False) -> None:
    """What the daemon wrote.

    \b
    Example:
      gpq daemon logs -n 20 -f
    """
    output.say(*daemon_control.logs(lines))
    if follow:
        for line in daemon_control.follow():
            output.say(line)
