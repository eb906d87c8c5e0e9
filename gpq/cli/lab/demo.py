"""`gpq demo`: trains three real jobs on two embedded CPU servers and shows the live table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Json, frame
from gpq.demo import DemoResult, play, stage
from gpq.options import values
from gpq.rpc.daemon_answers import TopView
from gpq.views.plain import moment, safe

app = frame()
POLICY = typer.Option(
    "--policy", metavar="POLICY", help="Policy of the daemon. `gpq config policies` lists them."
)
HOME = typer.Option(
    "--home",
    metavar="DIR",
    help="Keep state and logs there. By default they stay only if the demo fails.",
)
TIMEOUT = typer.Option(
    "--timeout", metavar="DURATION", help="Give up after this long, with exit code 124."
)

Draw = Callable[[TopView, str], None]


@app.command()
def demo(
    policy: Annotated[str, POLICY] = "goodput",
    home: Annotated[str, HOME] = "",
    timeout: Annotated[str, TIMEOUT] = "5m",
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> int:
    """Train three jobs on two embedded CPU servers, with a separate daemon, and check the result.

    The demo passes if all three jobs complete and reach their targets, and every pass over the data
    visits each sample exactly once. One job must also be resized while it runs, if the policy
    resizes jobs. One must change its batch size without a restart, if the policy changes batch
    sizes. Your own queue stays as it is.

    \b
    Example:
      gpq demo
      gpq demo --policy tiresias
      gpq demo --json --timeout 10m
    """
    seconds = values.seconds(timeout, "--timeout")
    live = not json and sys.stdout.isatty()
    with stage(home, policy) as scene, _picture(color.value) if live else _lines() as draw:
        result = play(scene, draw, timeout=seconds)
    output.result(result, *_summary(result), as_json=json)
    return 0 if result.passed else 1


@contextmanager
def _picture(color: str) -> Iterator[Draw]:
    """The live table, redrawn in place."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from gpq.views.top import frame as picture

    console = output.screen(color)
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw(view: TopView, act: str) -> None:
            table = picture(view, console.width, console.height - 1)
            live.update(Group(Text(f"gpq demo: {act}", style="bold cyan"), table), refresh=True)

        yield draw


@contextmanager
def _lines() -> Iterator[Draw]:
    """Without a terminal: a line on stderr for each event."""
    printed_lines: set[tuple[str, str]] = set()

    def draw(view: TopView, act: str) -> None:
        news = [("", f"-- {act}")]
        news += [
            (change.at, f"{moment(change.at)[11:]}  job {change.job}: {change.text}")
            for change in reversed(view.changes)
        ]
        for key, line in news:
            if (key, line) not in printed_lines:
                printed_lines.add((key, line))
                sys.stderr.write(safe(line) + "\n")
        sys.stderr.flush()

    yield draw


def _summary(result: DemoResult) -> list[str]:
    """The last lines: one per job, then one per requirement."""
    count = len(result.jobs)
    samples = "samples were lost or repeated"
    if result.samples_exact:
        samples = "no sample lost or repeated"
    verdict = "passed" if result.passed else "FAILED"
    ending = f"{verdict} under {result.policy} in {result.seconds:.0f} s"
    if result.home:
        ending += f", logs in {result.home}"
    lines = []
    for job in result.jobs:
        value = "nothing" if job.value is None else f"{job.value:.4g}"
        target = "reached" if job.reached else "missed"
        lines.append(
            f"{job.name}: {job.state} after {job.seconds:.0f} s, {job.metric} {value} (target"
            f" {job.target:g}: {target}), resized {job.resizes}x,"
            f" batch changed {job.batch_changes}x"
        )
    return [
        *lines,
        f"{result.completed} of {count} jobs completed",
        f"{result.targets_reached} of {count} targets reached",
        f"{result.resized} of {count} jobs resized while running, resumed from their checkpoints",
        f"{result.batch_changed} of {count} jobs changed their batch size without a restart",
        samples,
        ending,
    ]
