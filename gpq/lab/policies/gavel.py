"""Gavel (OSDI'20): shares of time on every GPU type, optimal for one of four objectives, which
rounds of gangs approach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from gpq.core.feasibility.shapes import Supply, is_mixed, node_counts, pack, shape_now
from gpq.core.goodput import estimates
from gpq.core.model.jobs import HOLDS_DEVICES, Allotment, Job
from gpq.core.model.placements import Shape
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.lab.policies.packing import pack_in_turns
from gpq.policies.shared.eligible import contest
from gpq.policies.shared.type_transfer import inform

Shares = Mapping[JobId, Mapping[str, float]]
Array = NDArray[np.float64]
# as published: sharing time means restarts, which would use up shorter turns
ROUND: Seconds = 360.0
UNKNOWN_SECONDS: Seconds = 60.0  # assumed at least to remain for a job of unknown length
DECIMALS = 5  # of a share. Smaller digits are the solver's noise
TOLERANCE = 1e-3  # relative tolerance of the bisection


class Gavel(Policy):
    """The most throughput, summed over jobs. Each gang has exactly the GPUs that it asked for, of
    one type.

    A round lasts `interval`, at least ROUND. Running jobs stay until it ends, and GPUs that become
    free go to the next job.
    """

    name = "gavel"
    sentence = "Gavel (OSDI'20): the most effective throughput over GPU types"
    gang = True
    own_batch = True

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._round_at: Seconds | None = None

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        snapshot = inform(snapshot)
        round_ = contest(snapshot)
        self._ledger.credit(snapshot)
        gangs = self._ledger.whole(demands(snapshot, round_.jobs, round_.parts))
        if not gangs:
            return dict(round_.fixed_shapes)
        shares = self._shares(Programme(gangs, round_.capacity))
        return pack_in_turns(snapshot, round_, self._order(snapshot, gangs, shares))

    def _shares(self, programme: Programme) -> Shares:
        return programme.most_throughput()

    def _order(
        self, snapshot: Snapshot, gangs: Sequence[Demand], shares: Shares
    ) -> list[tuple[JobId, Shape]]:
        """Seating order: jobs in the middle of their round first, then by X / f, X, and their
        present place."""
        length, now = max(snapshot.config.interval, ROUND), snapshot.now
        begins = self._round_at is None or not self._round_at <= now < self._round_at + length * (
            1.0 - 1e-9
        )
        if begins:
            self._round_at = now
        priority = self._ledger.priority(shares, length)
        rows: list[tuple[tuple[float, ...], tuple[JobId, str], Shape]] = []
        for demand in gangs:
            job = snapshot.jobs[demand.job]
            shape = shape_now(job, snapshot)
            for kind, speed in demand.speeds.items():
                stays = shape is not None and (shape.replicas, shape.gpu_type) == (
                    demand.gpus,
                    kind,
                )
                share = shares[job.id][kind]
                rank = (
                    -priority[job.id, kind],
                    -share,
                    not stays,
                    -job.spec.priority,
                    job.submitted_at,
                    -speed,
                )
                rows.append(((begins or not stays, *rank), (job.id, kind), demand.shapes[kind]))
        rows.sort(key=lambda row: row[:2])
        return [(name, shape) for _, (name, _), shape in rows]


class GavelMaxMin(Gavel):
    """Max-min fairness: the job with the least throughput, relative to an equal share of every
    type, gets as much as possible."""

    name = "gavel-max-min"
    sentence = "Gavel: as much as possible for the job that gets least"

    def _shares(self, programme: Programme) -> Shares:
        return programme.max_min_fairness()


class GavelFtf(Gavel):
    """Minimises the worst finish-time fairness (the measure of Themis, without its auction)."""

    name = "gavel-ftf"
    sentence = "Gavel: the best value for the worst finish-time fairness"

    def _shares(self, programme: Programme) -> Shares:
        return programme.finish_time_fairness()


class GavelMakespan(Gavel):
    """The last job ends as early as possible."""

    name = "gavel-makespan"
    sentence = "Gavel: the earliest end of the last job"

    def _shares(self, programme: Programme) -> Shares:
        return programme.least_makespan()


@dataclass(frozen=True, slots=True)
class Demand:
    """One gang, with the batch size that it asked for."""

    job: JobId
    shapes: Mapping[str, Shape]  # the packed shape on each type where it fits
    speeds: Mapping[str, float]  # steps per second there, > 0
    steps: float  # steps left
    total: float  # steps left and done
    age: Seconds  # since submission

    @property
    def gpus(self) -> int:
        return next(iter(self.shapes.values())).replicas


def demands(
    snapshot: Snapshot, jobs: Sequence[Job], parts: Mapping[JobId, Mapping[str, Supply]]
) -> tuple[Demand, ...]:
    """The demand of each job that fits on at least one type. A job of unknown speed counts as the
    median of the others."""
    rows = []
    for job in jobs:
        shapes = {
            name: shape
            for name, part in parts[job.id].items()
            if (shape := pack(job.spec.min_gpus, node_counts(part), job.spec.level, name))
        }
        if shapes:
            rows.append((job, shapes, _speeds(job, snapshot, shapes)))
    typical_speed = median([speed for _, _, speeds in rows for speed in speeds.values()] or [1.0])
    return tuple(
        _demand(job, snapshot, shapes, speeds or dict.fromkeys(shapes, typical_speed))
        for job, shapes, speeds in rows
    )


def _speeds(job: Job, snapshot: Snapshot, shapes: Mapping[str, Shape]) -> dict[str, float]:
    """Steps per second at the requested batch size. Types on which it cannot run, or of unknown
    speed, are left out."""
    oracle = snapshot.oracles.get(job.id)
    if oracle is not None:
        times = {name: oracle.step_seconds(shape) for name, shape in shapes.items()}
        return {name: 1.0 / time for name, time in times.items() if time}
    batch = _batch(job)
    choices = {
        name: estimates.best_batch(job, shape, at_most=batch) for name, shape in shapes.items()
    }
    return {
        name: choice.throughput / choice.total_batch
        for name, choice in choices.items()
        if choice is not None
    }


def _batch(job: Job) -> int:
    declaration = job.profile.declared
    return job.spec.batch_size or (declaration.batch_size if declaration is not None else 0)


def _demand(
    job: Job, snapshot: Snapshot, shapes: Mapping[str, Shape], speeds: Mapping[str, float]
) -> Demand:
    progress = job.profile.progress
    fraction = 0.0
    if progress is not None and progress.epochs > 0:
        fraction = min(progress.fraction, 1.0)
    steps = total = _steps_left(job, snapshot, max(speeds.values()))
    if fraction < 1.0:
        total = steps / (1.0 - fraction)
    usable_shapes = {name: shapes[name] for name in speeds}
    return Demand(
        job.id, usable_shapes, speeds, steps, total, max(snapshot.now - job.submitted_at, 0.0)
    )


def _steps_left(job: Job, snapshot: Snapshot, speed: float) -> float:
    """Never less than one. A job of unknown length has as much ahead as behind it (Lindy's law)."""
    if job.id in snapshot.oracles:
        return max(snapshot.oracles[job.id].remaining_steps, 1.0)
    declaration, left, batch = job.profile.declared, job.profile.length_left, _batch(job)
    if declaration is not None and declaration.dataset_size > 0 and batch > 0:
        if left is not None:
            return max(left / batch, 1.0)
        if declaration.epochs > 0:
            return max(declaration.dataset_size * declaration.epochs / batch, 1.0)
    run_seconds = job.run_seconds
    if job.state in HOLDS_DEVICES and job.started_at is not None:
        run_seconds += snapshot.now - job.started_at
    return max(max(run_seconds, UNKNOWN_SECONDS) * speed, 1.0)


class Programme:
    """The linear programmes of one round.

    X[j, g] is the share of time that gang j with d_j GPUs should spend on type g. sum_g X[j, g] <=
    1 for every job, and sum_j d_j X[j, g] <= N_g for every type. R_j(X) = sum_g R[j, g] X[j, g] is
    its throughput, with R in steps per second.
    """

    def __init__(self, demands: Sequence[Demand], capacity: Mapping[str, int]) -> None:
        self.demands = tuple(demands)
        self.types = tuple(sorted(capacity))
        self.supply = np.array([float(capacity[name]) for name in self.types])
        self.pairs = [
            (j, self.types.index(g))
            for j, demand in enumerate(demands)
            for g in sorted(demand.speeds)
        ]
        self.speed = np.array([demands[j].speeds[self.types[g]] for j, g in self.pairs])
        self.gpus = np.array([float(demand.gpus) for demand in demands])

    def most_throughput(self) -> Shares:
        """max sum_j R_j(X): the most steps per second over all jobs."""
        return self._shares(self._solve(self.speed))

    def max_min(self, scale: Array) -> tuple[float, Array]:
        """(s, X): max s with scale_j R_j(X) >= s for every job. X is per pair."""
        solution = self._solve(np.append(np.zeros(len(self.pairs)), 1.0), scale)
        return float(solution[-1]), solution[:-1]

    def max_min_fairness(self) -> Shares:
        """max min_j d_j R_j(X) / R_j(X_equal): as much as possible for the job that gets least."""
        # every type in the same proportion, N_g / N of the time
        equal = np.array([self.supply[g] for _, g in self.pairs])
        equal = equal / max(float(self.supply.sum()), 1.0)
        scale = self.gpus / self.throughput(equal)
        return self._spread(scale, self.max_min(scale)[0])

    def least_makespan(self) -> Shares:
        """min T with R_j(X) T >= W_j: as max 1 / T it is linear, so no bisection is needed."""
        scale = 1.0 / np.array([demand.steps for demand in self.demands])
        return self._spread(scale, self.max_min(scale)[0])

    def finish_time_fairness(self) -> Shares:
        """min max_j (t_j + W_j / R_j(X)) / T_iso_j: age and remaining time, relative to all its
        steps on a 1/J share of each type.

        A job reaches rho if R_j(X) (rho T_iso_j - t_j) / W_j >= 1. Bisection finds the rho that
        every job reaches, starting from X_iso.
        """
        steps = np.array([demand.steps for demand in self.demands])
        age = np.array([demand.age for demand in self.demands])
        # a 1/J share of every type: (N_g / J) / d_j of the time, at most all of it
        share = np.array([self.supply[g] / len(self.demands) / self.gpus[j] for j, g in self.pairs])
        jobs = [j for j, _ in self.pairs]
        sums = _sums(share, jobs, len(self.demands))
        alone_speeds = self.throughput(share / np.maximum(sums[jobs], 1.0))
        ideal = np.array([demand.total for demand in self.demands]) / alone_speeds
        low, high = float(np.max(age / ideal)), float(np.max((age + steps / alone_speeds) / ideal))
        while high - low > TOLERANCE * high:
            rho = (low + high) / 2.0
            if self.max_min((rho * ideal - age) / steps)[0] >= 1.0:
                high = rho
            else:
                low = rho
        return self._spread((high * ideal - age) / steps, 1.0)

    def _spread(self, scale: Array, level: float) -> Shares:
        """The X that reaches the level and gives the rest away where it helps most. The paper
        leaves the choice among optima to the solver."""
        jobs = [j for j, _ in self.pairs]
        return self._shares(self._solve(scale[jobs] * self.speed, scale, (1.0 - 1e-6) * level))

    def throughput(self, shares: Array) -> Array:
        """R_j of shares by pair."""
        return _sums(shares * self.speed, [j for j, _ in self.pairs], len(self.demands))

    def _solve(self, value: Array, scale: Array | None = None, level: float = 0.0) -> Array:
        """max value . (X, s) within the base constraints. With `scale` also scale_j R_j(X) >= s. s
        is a variable if `value` has a coefficient for it, otherwise `level`."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        n, m = len(self.pairs), len(self.demands)
        lines = [j for j, _ in self.pairs] + [m + g for _, g in self.pairs]
        columns = [*range(n), *range(n)]
        entries = [1.0] * n + [float(self.gpus[j]) for j, _ in self.pairs]
        bound = [1.0] * m + self.supply.tolist()
        if scale is not None:
            base = len(bound)
            unit = float(np.max(scale))  # keeps the numbers for the solver small
            lines += [base + j for j, _ in self.pairs]
            columns += range(n)
            entries += [
                -float(scale[j] / unit * speed)
                for (j, _), speed in zip(self.pairs, self.speed, strict=True)
            ]
            bound += [-level / unit] * m
            if len(value) > n:
                lines += [base + j for j in range(m)]
                columns += [n] * m
                entries += [1.0 / unit] * m
        matrix = csr_array((entries, (lines, columns)), shape=(len(bound), len(value)))
        # Without integers this is HiGHS' simplex.
        limits = LinearConstraint(matrix, -np.inf, np.array(bound))
        result = milp(-value, bounds=Bounds(0.0, np.inf), constraints=limits)
        if result.x is None:
            raise ArithmeticError(
                f"time shares have no solution, though none at all would be one: {result.message}"
            )
        return np.asarray(result.x, dtype=np.float64)

    def _shares(self, solution: Array) -> Shares:
        shares: dict[JobId, dict[str, float]] = {demand.job: {} for demand in self.demands}
        for (j, g), value in zip(
            self.pairs, np.clip(np.round(solution, DECIMALS), 0.0, 1.0).tolist(), strict=True
        ):
            shares[self.demands[j].job][self.types[g]] = value
        return shares


def _sums(values: Array, groups: Sequence[int], number: int) -> Array:
    sums = np.zeros(number)
    np.add.at(sums, groups, values)
    return sums


@dataclass(slots=True)
class Ledger:
    """Seconds that each job had on each type since the set of jobs last changed, from the snapshots
    of the rounds."""

    jobs: frozenset[JobId] = frozenset()
    seen_at: Seconds | None = None
    seconds: dict[tuple[JobId, str], Seconds] = field(default_factory=dict)
    # the most steps that a job has needed so far
    totals: dict[JobId, float] = field(default_factory=dict)

    def credit(self, snapshot: Snapshot) -> None:
        """Adds the time since the last round to the jobs that have held devices since then."""
        is_mixed_cluster, now = is_mixed(snapshot), snapshot.now
        if frozenset(snapshot.jobs) != self.jobs or self.seen_at is None or now < self.seen_at:
            self.jobs, self.seconds = frozenset(snapshot.jobs), {}
        else:
            for name, job in sorted(snapshot.jobs.items()):
                if job.placement is not None and job.launched_at is not None:
                    key = (name, job.placement.gpu_type if is_mixed_cluster else "")
                    elapsed = now - max(self.seen_at, job.launched_at)
                    self.seconds[key] = self.seconds.get(key, 0.0) + max(elapsed, 0.0)
        self.seen_at = now

    def whole(self, demands: Sequence[Demand]) -> tuple[Demand, ...]:
        """Adds the steps since a job was first seen, if nothing reports how many it has done."""
        totals = {
            demand.job: max(demand.total, self.totals.get(demand.job, 0.0)) for demand in demands
        }
        self.totals = {
            name: steps for name, steps in {**self.totals, **totals}.items() if name in self.jobs
        }
        return tuple(replace(demand, total=totals[demand.job]) for demand in demands)

    def priority(self, shares: Shares, interval: Seconds) -> dict[tuple[JobId, str], float]:
        """X / f: the share of time that a job should have relative to the share of the type's
        assigned time that it had. Both start half a round ahead for everybody, so that no job is
        infinitely ahead."""
        first = max(interval, 1.0) / 2.0
        keys = [(name, kind) for name, type_shares in shares.items() for kind in type_shares]
        busy: dict[str, float] = {}
        for key in keys:
            busy[key[1]] = busy.get(key[1], 0.0) + first + self.seconds.get(key, 0.0)
        return {
            (name, kind): shares[name][kind]
            * busy[kind]
            / (first + self.seconds.get((name, kind), 0.0))
            for name, kind in keys
        }
