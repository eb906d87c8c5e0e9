"""`gpq demo`: trains real jobs on two embedded CPU servers and shows the live table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Json, frame
from gpq.demo import DemoResult, play, stage
from gpq.errors import UsageError
from gpq.options import values
from gpq.rpc.daemon_answers import TopView
from gpq.views.plain import moment, safe

if TYPE_CHECKING:
    from gpq.demo_team import TeamResult
    from gpq.rpc.team_messages import Membership

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
TEAM = typer.Option("--team", help="Show instead how three members of a team share the servers.")

Draw = Callable[[Any, str], None]


@app.command()
def demo(
    policy: Annotated[str, POLICY] = "goodput",
    home: Annotated[str, HOME] = "",
    timeout: Annotated[str, TIMEOUT] = "5m",
    team: Annotated[bool, TEAM] = False,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> int:
    """Train three jobs on two embedded CPU servers, with a separate daemon, and check the result.

    The demo passes if all three jobs complete and reach their targets, and every pass over the data
    visits each sample exactly once. One job must also be resized while it runs, if the policy
    resizes jobs. One must change its batch size without a restart, if the policy changes batch
    sizes. Your own queue stays as it is.

    With --team, three members have a daemon each. One of them takes all GPUs before the others
    come. It passes if then all have their floor as long as all have jobs.

    \b
    Example:
      gpq demo
      gpq demo --team
      gpq demo --policy tiresias
      gpq demo --json --timeout 10m
    """
    seconds = values.seconds(timeout, "--timeout")
    live = not json and sys.stdout.isatty()
    if team:
        if policy != "goodput":
            raise UsageError("--policy does not go with --team", "leave one of them out")
        return _team(home, seconds, color.value, json=json, live=live)
    from gpq.views import top

    with stage(home, policy) as scene, _drawing(color.value, live, top.frame, _changes) as draw:
        result = play(scene, draw, timeout=seconds)
    output.result(result, *_summary(result), as_json=json)
    return 0 if result.passed else 1


def _team(home: str, timeout: float, color: str, *, json: bool, live: bool) -> int:
    from gpq import demo_team  # only this imports the arbiter

    with demo_team.stage(home) as scene, _drawing(color, live, _members, _holdings) as draw:
        result = demo_team.play(scene, draw, timeout=timeout)
    output.result(result, *_team_summary(result), as_json=json)
    return 0 if result.passed else 1


@contextmanager
def _drawing(
    color: str,
    live: bool,
    picture: Callable[[Any, int, int], object],
    lines: Callable[[Any, str], Iterable[str]],
) -> Iterator[Draw]:
    """`live`: the picture of what there is to see, of a width and a height, redrawn in place.
    Otherwise each of the lines goes to stderr once."""
    if not live:
        printed_lines: set[str] = set()

        def write(view: object, act: str) -> None:
            for line in lines(view, act):
                if line not in printed_lines:
                    printed_lines.add(line)
                    sys.stderr.write(safe(line) + "\n")
            sys.stderr.flush()

        yield write
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = output.screen(color)
    with Live(console=console, screen=True, auto_refresh=False) as screen:

        def draw(view: object, act: str) -> None:
            head = Text(f"gpq demo: {act}", style="bold cyan")
            rows = picture(view, console.width, console.height - 1)
            screen.update(Group(head, rows), refresh=True)  # type: ignore[arg-type]

        yield draw


def _changes(view: TopView, act: str) -> list[str]:
    changes = [
        f"{moment(change.at)[11:]}  job {change.job}: {change.text}"
        for change in reversed(view.changes)
    ]
    return [f"-- {act}", *changes]


def _members(view: Membership, width: int, _: int) -> str:
    from gpq.views import team

    return "\n".join(team.lines(view, width))


def _holdings(view: Membership, act: str) -> list[str]:
    gpus = ", ".join(f"{row.name} {row.devices} (floor {row.floor})" for row in view.rows)
    return [f"-- {act}: {gpus}"]


def _ending(result: DemoResult | TeamResult, policy: str = "") -> str:
    verdict = "passed" if result.passed else "FAILED"
    place = f", logs in {result.home}" if result.home else ""
    return f"{verdict}{policy} in {result.seconds:.0f} s{place}"


def _summary(result: DemoResult) -> list[str]:
    """The last lines: one per job, then one per requirement."""
    count = len(result.jobs)
    samples = "samples were lost or repeated"
    if result.samples_exact:
        samples = "no sample lost or repeated"
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
        _ending(result, f" under {result.policy}"),
    ]


def _team_summary(result: TeamResult) -> list[str]:
    """The table of shares, and the verdict."""
    from gpq.demo_team import GREEDY

    rows = [f"{'MEMBER':8}{'SHARE':>6}{'FLOOR':>7}{'GPUS':>6}{'WAIT':>8}{'COMPLETED':>11}"]
    for row in result.members:
        wait = "-" if row.wait is None else f"{row.wait:.0f} s"
        rows.append(
            f"{row.name:8}{row.share:6g}{row.floor:7}{row.gpus:6.1f}{wait:>8}{row.completed:11}"
        )
    return [
        f"{GREEDY} had {result.alone} GPUs alone. Then, while all had jobs:",
        *rows,
        "GPUS is an average. WAIT is the time from the others' submission to the floor",
        _ending(result),
    ]
