"""How long a whole round takes, from reports to plan, at four sizes, compared with the genetic
search and HiGHS. Exits with 1 if a figure is over its bar.

    python benchmarks/solver.py [--sizes 64x30,256x100,1024x1000,10000x10000] [--rounds 9]
    [--no-rivals] [--out FILE]

A synthetic lab in the middle of its day: adaptive training jobs of four users, some new, some
waiting, and a few commands. In every round each running job has reported another 30 steps on its
present GPUs (step times 3% off) and a new noise scale. One job in twenty runs in a configuration
that is new to it. `cold` is the first round, which knows nothing from before.

A round is fold, allocate, place and plan (`core.rounds.decide`), in CPU milliseconds of one core,
the median of the rounds. The objective is Pollux's (the mean of speedups bent by p = -1). It is
computed for the plan of `goodput` with Pollux's power and for the plan of the genetic search, on
the same snapshots. HiGHS solves exactly the programme that `goodput` solved in that round (same
values, same sizes).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from round import Rng, cluster, profile, truth

from gpq.core.goodput import goodput as gp
from gpq.core.model.events import TimingSums
from gpq.core.model.jobs import Job, JobSpec, JobState, Level
from gpq.core.model.placements import BatchOrder, Shape
from gpq.core.model.profile import Noise, Profile
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.rounds import decide
from gpq.core.state.learn_profile import merge, refresh
from gpq.lab.policies import pollux, sizing
from gpq.policies.goodput import candidates
from gpq.policies.goodput.buddy_blocks import programme
from gpq.policies.goodput.policy import Goodput, choose_shapes
from gpq.policies.goodput.valuation import Valuation
from gpq.policies.registry import policy
from gpq.policies.shared import type_transfer
from gpq.policies.shared.knapsack import Item, solve

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support.pollux_objective import objective

BARS = {(64, 30): 5.0, (256, 100): 20.0, (1024, 1000): 150.0, (10_000, 10_000): 2000.0}  # CPU ms
NODE = 4
STEPS = 30  # in one report
WARM_UP = 5  # rounds until the batch sizes that were ordered first have been tried
RIVALS_UP_TO = 256  # GPUs, because the genetic search takes minutes beyond
GENETIC_ROUNDS = 3


def lab(gpus: int, jobs: int, rng: Rng) -> tuple[Snapshot, dict[JobId, gp.ThroughputParams]]:
    """All jobs wait, but most have run before."""
    live, params = {}, {}
    for number in range(1, jobs + 1):
        name = JobId(number)
        params[name] = truth(rng)
        command = number % 20 == 0
        spec = JobSpec(
            ("train.py",),
            "/",
            user=f"user{number % 4}",
            uid=1000,
            level=Level.BLACK_BOX if command else Level.SCRIPT,
            max_gpus=1 if command else 0,
        )
        known = not command and number % 10 != 1
        seen = (
            refresh(profile(params[name], int(rng.choice([1, 4, 8, 16])), rng))
            if known
            else Profile()
        )
        live[name] = Job(
            name, spec, submitted_at=-3600.0, profile=seen, service=float(rng.uniform(0, 1e5))
        )
    return Snapshot(now=0.0, nodes=cluster(gpus // NODE, NODE), jobs=live), params


def later(
    snapshot: Snapshot,
    decided: Snapshot,
    placements: dict[JobId, Any],
    params: dict[JobId, gp.ThroughputParams],
    rng: Rng,
) -> Snapshot:
    """One minute later: placed jobs run with the ordered batch size, and have reported."""
    jobs = {}
    for name, job in snapshot.jobs.items():
        placement = placements.get(name)
        if placement is None:
            jobs[name] = replace(
                job, placement=None, state=JobState.PENDING, launched_at=None, started_at=None
            )
            continue
        began = (
            job.launched_at
            if job.placement == placement and job.launched_at is not None
            else snapshot.now - 30.0
        )
        jobs[name] = replace(
            job,
            placement=placement,
            state=JobState.RUNNING,
            attempt=1,
            launched_at=began,
            started_at=began,
            last_replicas=placement.replicas,
            order=decided.jobs[name].order,
            profile=reported(job.profile, params[name], placement, decided.jobs[name].order, rng),
        )
    return replace(snapshot, now=snapshot.now + 60.0, jobs=jobs)


def reported(
    seen: Profile, params: gp.ThroughputParams, placement: Any, order: BatchOrder, rng: Rng
) -> Profile:
    if not seen.rows:
        return seen
    nodes, replicas = len(placement.parts), placement.replicas
    here = [row for row in seen.rows if (row.nodes, row.replicas) == (nodes, replicas)]
    atomic = order.atomic_batch or (here[0].atomic_batch if here else 32)
    if rng.random() < 0.05:
        atomic = int(rng.choice([24, 48, 96]))
    error = float(np.exp(0.03 * rng.standard_normal()))
    grad = float(gp.grad_time(params, atomic)) * error
    step = max(float(gp.step_time(params, nodes, replicas, atomic)) * error, grad)
    sums = TimingSums(nodes, replicas, atomic, 0, STEPS, grad * STEPS, STEPS, step * STEPS)
    assert seen.noise is not None
    drift = float(np.exp(0.01 * rng.standard_normal()))
    return refresh(
        replace(
            seen,
            rows=merge(seen.rows, (sums,)),
            noise=Noise(seen.noise.sqr, seen.noise.var * drift, seen.noise.samples),
            samples_per_second=replicas * atomic / step,
            atomic_batch=atomic,
            accum_steps=order.accum_steps,
            order_seq=order.seq,
        )
    )


def measure(gpus: int, jobs: int, rounds: int, rivals: bool) -> dict[str, Any]:
    rng = np.random.default_rng([gpus, jobs])
    chooser = policy("goodput")
    snapshot, params = lab(gpus, jobs, rng)
    spent, used, moved = [], [], 0
    for _ in range(WARM_UP + rounds):
        began = time.process_time()
        decision = decide(snapshot, (), chooser, allocate=True)
        spent.append((time.process_time() - began) * 1e3)
        assert decision.round is not None
        placements = dict(decision.round.placements)
        used.append(sum(placement.replicas for placement in placements.values()))
        moved += sum(
            placements.get(name) != job.placement
            for name, job in snapshot.jobs.items()
            if job.placement
        )
        last, snapshot = snapshot, later(snapshot, decision.snapshot, placements, params, rng)
    assert isinstance(chooser, Goodput)
    contest, valuations = chooser._valuations(type_transfer.inform(last))
    items, capacities = programme(valuations, contest.capacities)
    found = solve(items, capacities)
    assert found is not None
    figures: dict[str, Any] = {
        "gpus": gpus,
        "jobs": jobs,
        "cold_ms": spent[0],
        "median_ms": median(spent[WARM_UP:]),
        "max_ms": max(spent[WARM_UP:]),
        "bar_ms": BARS.get((gpus, jobs)),
        "gpus_used": float(np.mean(used)),
        "moved_a_round": moved / (WARM_UP + rounds),
        "gap": (found.bound - found.value) / max(abs(found.value), 1e-12),
        "solver_ms": timed(lambda: solve(items, capacities)),
    }
    if rivals and gpus <= RIVALS_UP_TO:
        figures |= against_highs(items, capacities[0], found.value) | against_search(last)
    return figures


def timed(work: Any) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def against_highs(items: Sequence[Item], capacity: int, value: float) -> dict[str, Any]:
    """The same programme solved by HiGHS (scipy.optimize.milp)."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    values = np.concatenate([each.values for each in items])
    sizes = np.concatenate([each.sizes for each in items])
    rows = np.repeat(np.arange(len(items)), [len(each.sizes) for each in items])
    one = csr_array(
        (np.ones(len(values)), (rows, np.arange(len(values)))), shape=(len(items), len(values))
    )
    constraints = [LinearConstraint(one, 1, 1), LinearConstraint(sizes[None, :], 0, capacity)]
    began = time.process_time()
    answer = milp(
        -values, integrality=np.ones(len(values)), bounds=Bounds(0, 1), constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )  # fmt: skip
    spent = (time.process_time() - began) * 1e3
    return {"highs_ms": spent, "value_over_highs": value / -float(answer.fun)}


def against_search(snapshot: Snapshot) -> dict[str, Any]:
    """Pollux's objective as found by the solver and by the genetic search in the same round, and
    the time of the search."""

    mine = objective(snapshot, by_solver(snapshot))
    spent, ratios = [], []
    for seed in range(GENETIC_ROUNDS):
        here = replace(snapshot, config=replace(snapshot.config, seed=seed))
        search = policy("pollux")
        began = time.process_time()
        theirs = search.allocate(here)
        spent.append((time.process_time() - began) * 1e3)
        ratios.append(mine / objective(here, theirs))
    return {"search_ms": median(spent), "objective_over_search": min(ratios)}


def by_solver(snapshot: Snapshot) -> Mapping[JobId, Shape]:
    """The choice of `goodput`'s solver and repair, if a shape is worth to each job what it is worth
    in Pollux's search."""
    entrants = sizing.entrants(snapshot)
    share = pollux.shares(snapshot, entrants)[""]
    rivals = {contender.job.id: contender for contender in entrants.contenders}
    found = candidates.field_of(snapshot)
    valued = []
    for each in found.candidates:
        job, rival = each.job, rivals[each.job.id]
        most = max(pollux.growth_cap(rival), each.current.replicas if each.current else 0)
        held = each.current if job.placement is not None else None
        known = [
            (s, t)
            for s, t in zip(each.options.shapes, each.options.tidy.tolist(), strict=True)
            if s.replicas <= most
        ]
        known = [(shape, tidy) for shape, tidy in known if shape != held]
        always = [None, *(shape for shape, tidy in known if tidy)]
        shapes = [*always, *(shape for shape, tidy in known if not tidy)]
        table = pollux.speedups(job, "", share, most) * share.scale
        left = pollux.restart_factor(job, snapshot.now, snapshot.config)
        worth = [
            left * float(table[int(s.nodes > 1), s.replicas]) if s is not None else 0.0
            for s in shapes
        ]
        if held is not None:
            shapes, worth = (
                [held, *shapes],
                [float(table[int(held.nodes > 1), held.replicas]), *worth],
            )
        tidy_ones = len(always) + (held is not None)
        menu = candidates.menu_of(tuple(shapes), tidy_ones)
        valued.append(Valuation(job.id, menu, -1.0 / (np.array(worth) + pollux.FLOOR)))
    return {**found.fixed_shapes, **choose_shapes(snapshot, found, valued)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", default=",".join(f"{gpus}x{jobs}" for gpus, jobs in BARS), help="GPUSxJOBS,..."
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--no-rivals", action="store_true", help="leave out the genetic search and HiGHS"
    )
    parser.add_argument("--out", type=Path, help="write the figures to this file as JSON")
    options = parser.parse_args()
    passed, results = True, []
    for size in options.sizes.split(","):
        gpus, jobs = (int(part) for part in size.split("x"))
        figures = measure(gpus, jobs, options.rounds, not options.no_rivals)
        results.append(figures)
        bar = figures["bar_ms"]
        good = (bar is None or figures["median_ms"] <= bar) and figures.get(
            "objective_over_search", 1.0
        ) >= 1.0 - 1e-9
        passed = passed and good
        print(f"{gpus} GPUs, {jobs} jobs: {'' if good else 'MISSED '}")
        for name, figure in figures.items():
            print(
                f"  {name:22} {figure:.6g}"
                if isinstance(figure, float | int)
                else f"  {name:22} {figure}"
            )
        sys.stdout.flush()
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
