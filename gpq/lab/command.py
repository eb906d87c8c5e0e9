"""`gpq simulate`: compares policies in simulated time, on published workloads or on your own
jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Json, frame
from gpq.errors import UsageError
from gpq.lab import plan_runs
from gpq.lab import plot as figures
from gpq.lab.measurements.sources import Member, Source
from gpq.lab.simulator import compare, process_pool
from gpq.lab.simulator.rules import Rules
from gpq.options import values
from gpq.views import plain

app = frame()
WHOLE = 100_000  # columns in a pipe, so that programs get whole lines


class Ruleset(str, Enum):
    osdi21 = "osdi21"
    sia = "sia"


WORKLOADS = typer.Argument(
    metavar="[FILE]...", help="CSV file with name, time, application, num_replicas, batch_size."
)
TRACES = typer.Option(
    "--traces", metavar="PATH", help="Folder of measurements, with one folder per application."
)
NODES = typer.Option(
    "--nodes",
    metavar="NxG[:TYPE],...",
    help="Cluster, such as 16x4 or 6x4:t4,2x8:a100. Repeat it to compare. [default: 16x4]",
)
POLICY = typer.Option("--policy", metavar="POLICY,...", help="Policies to compare.")
INTERVAL = typer.Option(
    "--interval", metavar="SECONDS", help="Time between two rounds. [default: 60]"
)
RESTART = typer.Option(
    "--restart",
    metavar="SECONDS",
    help="Cost of each start and move. [default: 30. With --rules sia: by application]",
)
KNOWN = typer.Option(
    "--known-length/--unknown-length",
    help="Jobs say how long they are. [default: unknown. With --history: known]",
)
PRIORS = typer.Option(
    "--priors/--no-priors",
    help=(
        "Start jobs with profiles of earlier jobs of the same program."
        " [default: no. With --history: yes]"
    ),
)
EVENTS = typer.Option(
    "--events/--no-events",
    help=(
        "Run a round also when a job arrives, ends or first reports."
        " [default: no. With --history: yes]"
    ),
)
NOISE = typer.Option("--noise", metavar="SHARE", help="Relative error of the jobs' measurements.")
SEED = typer.Option("--seed", metavar="N,...", help="Random seed. With a list, run each.")
PARALLEL = typer.Option("--jobs-parallel", metavar="N", min=1, help="Number of processes.")
RULES = typer.Option(
    "--rules",
    metavar="osdi21|sia",
    help="Use the costs of the simulator of Pollux (osdi21) or Sia.",
)
SET = typer.Option(
    "--set",
    metavar="KEY=VALUE",
    help="A setting of the policy, such as fairness_power=0. Can be repeated.",
)
HISTORY = typer.Option("--history", help="Replay your own jobs instead of a file.")
SINCE = typer.Option(
    "--since",
    metavar="DURATION",
    help="With --history: only jobs submitted in this time, such as 30d.",
)
MEMBERS = typer.Option(
    "--members",
    metavar="N",
    min=1,
    max=100,
    help="Deal the jobs of a file in turn to N members, member-1 and so on.",
)
LIE = typer.Option(
    "--lie",
    metavar="MEMBER:KIND,...",
    help=(
        "What the jobs of a member report or ask untruly: speed, superlinear, noise, length,"
        " priority, age or jobs. Can be repeated."
    ),
)
CSV = typer.Option("--csv", help="Print one CSV line per run.")
PLOT = typer.Option(
    "--plot",
    metavar="FILE",
    help="Plot completion times, fairness and GPUs to FILE.svg or FILE.png.",
)


@app.command()
def simulate(
    workloads: Annotated[list[str] | None, WORKLOADS] = None,
    traces: Annotated[str, TRACES] = "",
    nodes: Annotated[list[str] | None, NODES] = None,
    policy: Annotated[str, POLICY] = "goodput",
    interval: Annotated[float, INTERVAL] = 60.0,
    restart: Annotated[float | None, RESTART] = None,
    known_length: Annotated[bool | None, KNOWN] = None,
    priors: Annotated[bool | None, PRIORS] = None,
    events: Annotated[bool | None, EVENTS] = None,
    noise: Annotated[float, NOISE] = 0.0,
    seed: Annotated[str, SEED] = "0",
    jobs_parallel: Annotated[int, PARALLEL] = 1,
    rules: Annotated[Ruleset, RULES] = Ruleset.osdi21,
    setting: Annotated[list[str] | None, SET] = None,
    history: Annotated[bool, HISTORY] = False,
    since: Annotated[str, SINCE] = "",
    members: Annotated[int | None, MEMBERS] = None,
    lie: Annotated[list[str] | None, LIE] = None,
    plot: Annotated[str, PLOT] = "",
    csv: Annotated[bool, CSV] = False,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> int:
    """Compare policies on a workload in simulated time, with the same policy code as the daemon.

    MEAN, MEDIAN and P99 are completion times. RHO is finish-time fairness: the completion time
    relative to that of the job alone on its fair share. 1 or less is fair. --history replays your
    own jobs, on your own servers unless you give --nodes. With --members, several people
    share a workload, and --lie says who of them is dishonest.

    \b
    Example:
      gpq simulate workload-1.csv --traces traces --policy goodput,fifo
      gpq simulate w.csv --traces t --nodes 6x4:t4,2x8:a100 --rules sia --json
      gpq simulate --history --since 30d --nodes 2x4 --nodes 2x5
      gpq simulate w.csv --traces t --members 3 --lie member-1:speed,noise
    """
    if csv and json:
        raise UsageError("--csv and --json cannot be combined", "use one of them")
    run_rules = Rules(
        nodes=(),
        interval=plan_runs.within(interval, "--interval", 1.0, 86_400.0),
        # Your own jobs are replayed as the daemon would run them, and public ones by the rules of
        # their artifact.
        known_length=history if known_length is None else known_length,
        priors=history if priors is None else priors,
        events=history if events is None else events,
        noise=plan_runs.within(noise, "--noise", 0.0, 10.0),
        profiled=rules is Ruleset.sia,
        config=plan_runs.settings(setting or []),
    )
    if restart is not None:
        plan_runs.within(restart, "--restart", 0.0, 86_400.0)
    if plot:
        figures.check(plot)
    names, numbers = plan_runs.policies(policy), plan_runs.seeds(seed)
    team = plan_runs.team(members, lie or [], known_length=run_rules.known_length)
    if history:
        _no_files(workloads or [], traces, rules, team)
        sources, machines = _own_jobs(since, restart, nodes or [])
    else:
        if since:
            raise UsageError(
                "--since needs --history",
                "remove --since, or add --history to replay your own jobs",
            )
        sources = plan_runs.published_workloads(
            workloads or [], traces, rules is Ruleset.sia, restart, team
        )
        machines = plan_runs.named_clusters(nodes or [plan_runs.DEFAULT_NODES])
    compare.preflight(sources, machines, names)
    remark = plan_runs.unused_options(
        names,
        run_rules,
        machines,
        numbers,
        known_length=known_length,
        priors=priors,
        sources=sources,
        members=team,
    )
    if remark:
        output.note(remark)
    runs = compare.plan(names, sources, machines, run_rules, numbers)
    with _bar(runs) as progress:
        outcomes = compare.attempt_all(runs, jobs_parallel, progress)
    failures = [outcome for outcome in outcomes if isinstance(outcome, compare.FailedRun)]
    blocks = compare.blocks(runs, outcomes)
    _show(blocks, failures, csv=csv, color=color.value, json=json)
    if plot and blocks:
        figures.draw(blocks, plot)
    elif plot:
        output.note(f"--plot {plot}: there is nothing to plot")
    for failure in failures:
        run = f"{failure.policy} on {failure.workload} ({failure.cluster}, seed {failure.seed})"
        output.failure(f"{run}: {failure.error}", failure.hint)
    return 1 if failures else 0


def _own_jobs(
    since: str, restart: float | None, nodes: Sequence[str]
) -> tuple[list[Source], list[compare.Cluster]]:
    """Your own jobs, and the clusters for their replay."""
    span = values.seconds(since, "--since") if since else None
    own_history = plan_runs.own_jobs(span, restart)
    clusters = plan_runs.measured_on(own_history, nodes)
    remarks = (plan_runs.left_out(own_history), plan_runs.unended_line(own_history))
    output.note(*filter(None, remarks))
    return [own_history], clusters


def _no_files(
    workloads: Sequence[str], traces: str, rules: Ruleset, team: Sequence[Member]
) -> None:
    replay = "--history replays your own jobs"
    for value, option, hint in (
        (workloads, "a workload file", replay),
        (traces, "--traces", replay),
        (rules is Ruleset.sia, "--rules sia", replay),
        (team, "--members", f"{replay}, which have their users"),
    ):
        if value:
            raise UsageError(f"{option} cannot be combined with --history", hint)


def _show(
    blocks: list[compare.Block],
    failures: list[compare.FailedRun],
    *,
    csv: bool,
    color: str,
    json: bool,
) -> None:
    from gpq.lab import comparison

    if json:
        output.emit(comparison.document(blocks, failures))
    elif csv:
        sys.stdout.write(comparison.csv_text(blocks))
    elif blocks:
        width = plain.terminal_width()
        output.console(color, pipe=WHOLE).print(
            comparison.picture(blocks, width, whole=not failures)
        )


@contextmanager
def _bar(runs: Sequence[compare.Run]) -> Iterator[process_pool.Progress | None]:
    """On a terminal, show how many runs have ended, and when the rest will end."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=len(runs))

        def progress(shares: Sequence[float]) -> None:
            finished_runs = sum(share >= 1.0 for share in shares)
            bar.update(
                task, completed=sum(shares), description=f"simulating {finished_runs}/{len(runs)}"
            )

        yield progress
