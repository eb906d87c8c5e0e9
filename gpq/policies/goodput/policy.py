"""The fairest sum of goodput: the gain of each job over its fair share, bent by a power, weighted,
and maximised exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log2

import numpy as np

from gpq.core.accounting.fairness import shares_now
from gpq.core.feasibility.checkpoints import bringing_seconds
from gpq.core.feasibility.shapes import by_type, gpu_types
from gpq.core.goodput import models
from gpq.core.goodput.priors import inform, most_replicas, program_of
from gpq.core.model.jobs import Job
from gpq.core.model.placements import Shape
from gpq.core.model.policy import Policy
from gpq.core.model.profile import Prior
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.placement import place
from gpq.policies.goodput.buddy_blocks import blocks_of, choose
from gpq.policies.goodput.candidates import (
    Candidate,
    Contest,
    Group,
    field_of,
    groups_of,
    menu_of,
    speeds_of,
)
from gpq.policies.goodput.forecast import Forecast, with_links
from gpq.policies.goodput.valuation import TINY, Stakes, Valuation, growth, growth_cap, value
from gpq.policies.shared import type_transfer
from gpq.policies.shared.eligible import priority_weight
from gpq.policies.shared.remaining_time import seconds_left

FEW_NODES = 32  # up to this many, few shapes span nodes
REPAIRS = 12  # how often shapes that do not fit together are withdrawn
# assumed for a job about which nothing is known, which soon changes
UNKNOWN_SECONDS: Seconds = 60.0
SERVICE_KNEE = 4000.0  # GPU-seconds below which service makes little difference
SERVICE_POWER = 0.4
DAY: Seconds = 86_400.0
OWN = 0.4  # what the time of a job itself counts beside the time that it makes others wait
DEFICIT = 1.75  # a job with this many times less service than its fair share counts for more


@dataclass
class Goodput(Policy):
    """Chooses n_j GPUs for every job j to maximise the sum of w_j (eps + f(n_j) g_j(n_j) / g_j(fair
    share))^p.

    g is modelled goodput (`outlook`), f what a restart leaves of it, w are `weights`. p is the
    fairness power: 1 = sum of speedups, 0 = Nash welfare, -1 = Pollux's harmonic mean. Jobs that
    must not move keep what they have.
    """

    name = "goodput"
    sentence = "the most goodput for everybody in fair shares, solved exactly"
    outlook: Forecast = field(default_factory=Forecast)

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Shape]:
        snapshot = type_transfer.inform(snapshot)
        contest, valuations = self._valuations(snapshot)
        return {**contest.fixed_shapes, **choose_shapes(snapshot, contest, valuations)}

    def _valuations(self, snapshot: Snapshot) -> tuple[Contest, list[Valuation]]:
        """What this round decides, and what each shape is worth to each job, in the order of the
        jobs."""
        config = snapshot.config
        self.outlook.forget_others(snapshot.jobs)
        models.expect(len(snapshot.jobs))
        shares = shares_now(snapshot)
        priors = _priors(snapshot)
        max_replicas = {
            name: most_replicas(job, priors.get(name)) for name, job in snapshot.jobs.items()
        }
        contest = field_of(snapshot, _reach(snapshot, max_replicas, shares))
        # What earlier jobs of the program taught counts as if this job had measured it.
        candidates = [
            replace(candidate, job=inform(candidate.job, priors.get(candidate.job.id)))
            for candidate in contest.candidates
        ]
        questions = [
            (candidate, priors.get(candidate.job.id), shares[candidate.job.id])
            for candidate in candidates
        ]
        groups = groups_of(candidates, self.outlook.tables(questions), max_replicas)
        stakes = [_stakes(snapshot, group) for group in groups]
        ends = _ends(groups, stakes, shares)
        by_cost = config.cost_to_go and bool(ends)
        if by_cost:
            urgency = _costs(groups, stakes, ends, sum(contest.capacities.values()), snapshot.now)
        else:
            urgency = urgencies(candidates, ends, shares, snapshot.now)
        weight = _after_debts(snapshot, weights(candidates, urgency, shares), shares)
        valuations = [
            valuation
            for group, stake in zip(groups, stakes, strict=True)
            for valuation in value(
                group, config, snapshot.now, shares, weight, stake, contest.capacities, by_cost
            )
        ]
        return contest, sorted(valuations, key=lambda valuation: valuation.job)


def _stakes(snapshot: Snapshot, group: Group) -> Stakes:
    """Seconds to the declared ends, and those to copy the files of each job to where each shape
    would put it. None if nothing needs copying."""
    options, jobs = group.options, [row.job for row in group.rows]
    times = seconds_left(jobs, group.tables, len(options.shapes))
    devices_by_type = by_type(options.offer.devices, snapshot)
    bringing = np.array(
        [bringing_seconds(snapshot, job, options.shapes, devices_by_type) for job in jobs]
    )
    return Stakes(times, bringing if bringing.any() else None)


def _ends(
    groups: Sequence[Group], stakes: Sequence[Stakes], shares: Mapping[JobId, float]
) -> dict[JobId, float]:
    """Seconds to the declared end on the fair share, of the jobs whose end is known: at the fastest
    shape within it, or at the smallest of all. Larger ones often never ran, and look better than
    they are."""
    ends: dict[JobId, float] = {}
    for group, stake in zip(groups, stakes, strict=True):
        replicas = group.options.replicas
        share = np.array([shares[row.job.id] for row in group.rows])
        limit = np.maximum(share, replicas.min())
        on_share = np.where(replicas <= limit[:, None], stake.times, np.inf).min(axis=1)
        soonest = np.where(np.isfinite(on_share), on_share, stake.times.min(axis=1))
        for row, end in zip(group.rows, soonest.tolist(), strict=True):
            if end < np.inf:
                ends[row.job.id] = end
    return ends


def _priors(snapshot: Snapshot) -> dict[JobId, Prior]:
    """What earlier jobs of its program taught, by job."""
    if not (snapshot.priors or snapshot.links):
        return {}
    priors = {
        name: with_links(job, snapshot.priors.get(program_of(job)), snapshot.links)
        for name, job in snapshot.jobs.items()
    }
    return {name: prior for name, prior in priors.items() if prior is not None}


def _reach(
    snapshot: Snapshot, max_replicas: Mapping[JobId, int], shares: Mapping[JobId, float]
) -> Mapping[JobId, int] | None:
    """Replicas beyond which no shape of a job matters: its growth cap and its fair share, rounded
    up to a power of two. None if there are few shapes, because gpq values all jobs together if this
    is the same for all."""
    if len(snapshot.nodes) <= FEW_NODES:
        return None
    node_size = max((len(node.devices) for node in snapshot.nodes.values()), default=0)
    times = growth(len(gpu_types(snapshot)))
    return {
        name: max(
            growth_cap(job, node_size, max_replicas[name], times),
            node_size,
            1 << int(shares.get(name, 0.0)).bit_length(),
        )
        for name, job in snapshot.jobs.items()
    }


def choose_shapes(
    snapshot: Snapshot, contest: Contest, valuations: Sequence[Valuation]
) -> dict[JobId, Shape]:
    """The best choice that also fits on nodes. Counts may fit the sum but not the nodes, so shapes
    without a place are withdrawn and the rest is chosen again."""
    blocks, choices = blocks_of(contest.free), list(valuations)
    for _ in range(REPAIRS):
        # nothing at all if no choice fits
        options = choose(choices, blocks) or [choice.shapes.index(None) for choice in choices]
        allocation = {
            choice.job: shape
            for choice, option in zip(choices, options, strict=True)
            if (shape := choice.shapes[option]) is not None
        }
        placements = place(snapshot, {**contest.fixed_shapes, **allocation})
        misfits = [name for name in allocation if name not in placements]
        if not misfits:
            break
        misfits.sort(
            key=lambda name: (-allocation[name].nodes, snapshot.jobs[name].spec.priority, name)
        )
        # half: room for these may make room for the others
        withdrawals = set(misfits[: (len(misfits) + 1) // 2])
        choices = [
            _without(choice, allocation[choice.job]) if choice.job in withdrawals else choice
            for choice in choices
        ]
        allocation = {name: shape for name, shape in allocation.items() if name in placements}
    return allocation


def _without(valuation: Valuation, shape: Shape) -> Valuation:
    """The choice without a shape that found no place. If that shape spans nodes, also without
    others of the same type that do and need at least as many GPUs."""
    columns = []
    for i, option in enumerate(valuation.shapes):
        is_no_smaller = (
            option is not None
            and min(option.nodes, shape.nodes) > 1
            and option.gpu_type == shape.gpu_type
            and option.replicas >= shape.replicas
        )
        if option != shape and not is_no_smaller:
            columns.append(i)
    tidy = sum(i < valuation.menu.tidy for i in columns)
    return Valuation(
        valuation.job,
        menu_of(tuple(valuation.shapes[i] for i in columns), tidy),
        valuation.values[columns],
    )


def weights(
    candidates: Sequence[Candidate], urgency: Mapping[JobId, float], shares: Mapping[JobId, float]
) -> dict[JobId, float]:
    """Urgencies multiplied by the fair share, so that users count and not their number of jobs, and
    by priority. Of the jobs that have one."""
    jobs = [candidate.job for candidate in candidates]
    mean = sum(shares[job.id] for job in jobs) / max(len(jobs), 1)
    return {
        job.id: urgency[job.id]
        * (shares[job.id] / mean if mean > 0 else 1.0)
        * priority_weight(job)
        for job in jobs
        if job.id in urgency
    }


def urgencies(
    candidates: Sequence[Candidate],
    remaining_seconds: Mapping[JobId, Seconds],
    shares: Mapping[JobId, float],
    now: Seconds,
) -> dict[JobId, float]:
    """Urgency of each job. `remaining_seconds`: to the declared end on the fair share, for jobs
    whose end is known.

    If at least one length is known, it is rank / J, and the longest job has rank 1. Only the order
    counts, so that one very long job does not swamp the rest (compare heSRPT, Berg et al. 2020). A
    job that got far less than its share so far counts for more, so that short ones cannot delay it
    forever. If no length is known, it is (service + 4000)^-0.4, least attained service first.
    """
    jobs = [candidate.job for candidate in candidates]
    if not remaining_seconds:
        return {
            job.id: (1.0 + job.service_at(now) / SERVICE_KNEE) ** -SERVICE_POWER for job in jobs
        }
    ranks = _ranks({job.id: remaining_seconds.get(job.id, _guess(job, now)) for job in jobs})
    return {
        candidate.job.id: ranks[candidate.job.id]
        * _deficit(candidate, shares[candidate.job.id], now)
        for candidate in candidates
    }


def _costs(
    groups: Sequence[Group],
    stakes: Sequence[Stakes],
    ends: Mapping[JobId, Seconds],
    capacity: int,
    now: Seconds,
) -> dict[JobId, float]:
    """The urgency of each job by cost-to-go: the time that all jobs together save for each second
    that it has its best shape.

    With x the GPU-seconds left at the most efficient shape and T the seconds left at the best one,
    jobs served shortest work first on G GPUs end after sum_ij min(x_i, x_j) / G + OWN sum_j T_j
    seconds, added up. Its slope is r w / G + OWN. r counts the jobs with at least as much work, w
    is x / T: the GPUs that the best shape is worth. A job that will take longer than alone on its
    fair share has its r multiplied by that ratio.
    """
    work: dict[JobId, float] = {}
    width: dict[JobId, float] = {}
    for group, stake in zip(groups, stakes, strict=True):
        replicas, speeds = group.options.replicas, speeds_of(group)
        widths = speeds.max(axis=1) / (speeds / replicas).max(axis=1)
        least = (stake.times * replicas).min(axis=1)
        for row, gpus, left in zip(group.rows, widths.tolist(), least.tolist(), strict=True):
            name = row.job.id
            width[name] = gpus
            # as much to come as it was served, if its length is unknown
            work[name] = left if name in ends else _doubling(row.job.service_at(now))
    ranks, jobs = _ranks(work), [row.job for group in groups for row in group.rows]
    rank = {job.id: ranks[job.id] * len(work) * _lateness(job, ends, now) for job in jobs}
    return {name: rank[name] * width[name] / max(capacity, 1) + OWN for name in rank}


def _lateness(job: Job, ends: Mapping[JobId, Seconds], now: Seconds) -> float:
    """Its time from submission to its end on its fair share, over that of the same job alone there.
    At least 1, also if its length is unknown."""
    length, left = job.profile.length, job.profile.length_left
    if job.id not in ends or not length or not left:
        return 1.0
    return max(1.0, left / length * (1.0 + (now - job.submitted_at) / max(ends[job.id], TINY)))


def _after_debts(
    snapshot: Snapshot, weight: Mapping[JobId, float], shares: Mapping[JobId, float]
) -> Mapping[JobId, float]:
    """Weights divided by 1 + the debt of the user, in days of the user's share."""
    if not snapshot.standings:
        return weight
    user_shares: dict[str, float] = defaultdict(float)
    for name, share in shares.items():
        user_shares[snapshot.jobs[name].spec.user] += share
    after = dict(weight)
    for name in weight:
        user = snapshot.jobs[name].spec.user
        standing = snapshot.standings.get(user)
        if standing is not None:
            after[name] /= 1.0 + standing.debt / (max(user_shares[user], 1.0) * DAY)
    return after


def _guess(job: Job, now: Seconds) -> Seconds:
    """A job of unknown length has as much ahead as behind it (Lindy's law), at least
    UNKNOWN_SECONDS.

    This is rounded up to a power of two of them, so that two such jobs take turns only at each
    doubling, not in every round.
    """
    run_seconds = job.run_seconds
    if job.placement is not None and job.started_at is not None:
        run_seconds += now - job.started_at
    return _doubling(run_seconds)


def _doubling(spent: float) -> float:
    spent = max(spent, UNKNOWN_SECONDS)
    return float(UNKNOWN_SECONDS * 2.0 ** ceil(log2(spent / UNKNOWN_SECONDS) - 1e-9))


def _deficit(candidate: Candidate, share: float, now: Seconds) -> float:
    """1, or how many times beyond DEFICIT its service falls short of its share. What it cannot use
    does not count."""
    job = candidate.job
    fair_service = min(share, candidate.options.most) * max(now - job.submitted_at, 0.0)
    return max(1.0, (fair_service + SERVICE_KNEE) / (job.service_at(now) + SERVICE_KNEE) / DEFICIT)


def _ranks(seconds: Mapping[JobId, Seconds]) -> dict[JobId, float]:
    """Rank / J from the longest (1 / J) to the shortest (1). Equal ones share the mean of their
    ranks."""
    ordered = sorted(seconds.values(), reverse=True)
    first: dict[Seconds, int] = {}
    last: dict[Seconds, int] = {}
    for rank, length in enumerate(ordered, 1):
        first.setdefault(length, rank)
        last[length] = rank
    return {
        job: (first[value] + last[value]) / 2.0 / len(ordered) for job, value in seconds.items()
    }
