"""The genetic search of Pollux (OSDI'21, section 4.2, and NSGA-II, Deb et al. 2002) on integer
matrices, jobs x nodes.

Knows no job and no node, only the matrices of a `Problem`. A generator brings the random numbers.
Works on whole populations.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Ints = NDArray[np.int16]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
POPULATION = 100
GENERATIONS = 100  # the first is the start itself
CROSSOVER = 0.9  # share of the pairs that exchange jobs
# shares of the rows: that return to the present state, and that lose each element with the
# same probability
RESET, SHRINK = 0.1, 0.1
TRIES = 2  # passes of a generation to find new states
ENOUGH = 90  # new states that are enough


@dataclass(frozen=True, slots=True)
class Problem:
    """J jobs on N nodes. Earlier jobs keep what two want. K is the largest number of replicas of
    any job."""

    base: Ints  # J x N: the present replicas
    room: Ints  # J x N: the most replicas of a job that a node can hold
    capacity: Ints  # N
    least: Ints  # J: fewer replicas than this count as none
    most: Ints  # J
    most_nodes: Ints  # J
    spanned: Bools  # N: has a job of several nodes that must not move
    cost: (
        # J x 2 (changed) x 2 (on several nodes) x K + 1: 1 / (utility + 1e-3), of which the mean is
        # to be least
        Floats
    )
    speedup: Floats  # J x 2 x K + 1
    # summed cost and number of the jobs that must not move
    fixed_jobs: tuple[float, int] = (0.0, 0)

    def values(self, states: Ints) -> Floats:
        """The values to minimise for each state: minus the harmonic mean of the utilities, and
        minus the cluster's utility."""
        jobs = np.arange(len(self.base))
        replicas = states.sum(axis=2, dtype=np.intp)
        wide = (np.count_nonzero(states, axis=2) > 1).astype(np.intp)
        changed = (states != self.base).any(axis=2).astype(np.intp)
        sizes = self.speedup.shape[2]
        at = (jobs * 2 + wide) * sizes + replicas
        cost = (
            self.cost.reshape(-1)[at + (jobs + changed) * 2 * sizes].sum(axis=1)
            + self.fixed_jobs[0]
        )
        active = (states.any(axis=1) * self.capacity).sum(axis=1)
        utility = self.speedup.reshape(-1)[at].sum(axis=1) / np.maximum(active, 1)
        return np.stack([-(len(jobs) + self.fixed_jobs[1]) / cost, -utility], axis=1)


def search(
    problem: Problem, start: Ints, luck: Generator, generations: int = GENERATIONS
) -> tuple[Ints, Ints]:
    """(the state with the best harmonic mean, the Pareto front). The start has the present state
    unchanged. The rest of `start` (states x J x N) is repaired first. So the result is never worse
    than the present state."""
    states = np.concatenate([problem.base[None], repair(problem, start.copy(), luck)]).astype(
        np.int16
    )
    keys: dict[bytes, None] = {}
    states = _new(states, keys)
    values = problem.values(states)
    states, values, rank, lonely = _survive(states, values, luck)
    for _ in range(generations - 1):
        children = _children(problem, states, values, lonely, luck)
        if len(children):
            states = np.concatenate([states, children])
            values = np.concatenate([values, problem.values(children)])
            states, values, rank, lonely = _survive(states, values, luck)
    best = int(np.argmin(values[:, 0]))
    return states[best], states[rank == 0]


def _children(
    problem: Problem, states: Ints, values: Floats, lonely: Floats, luck: Generator
) -> Ints:
    """Up to POPULATION states that are new."""
    keys = dict.fromkeys(state.tobytes() for state in states)
    batches: list[Ints] = []
    missing = POPULATION
    for _ in range(TRIES):
        parents = states[_tournament(values, lonely, 2 * (-(-missing // 2)), luck)]
        # single point: two states exchange their first jobs
        first, second = parents[0::2], parents[1::2]
        jobs = parents.shape[1]
        points = luck.integers(jobs, size=len(first)) * (luck.random(len(first)) < CROSSOVER)
        swap = (np.arange(jobs) < points[:, None])[:, :, None]
        crossed = np.concatenate([np.where(swap, second, first), np.where(swap, first, second)])
        children = _new(repair(problem, _mutate(problem, crossed, luck), luck), keys)[:missing]
        batches.append(children)
        missing -= len(children)
        if POPULATION - missing >= ENOUGH:
            break
    return np.concatenate(batches)


def _new(states: Ints, keys: dict[bytes, None]) -> Ints:
    """The states that `keys` does not have. Adds them to it."""
    new_indexes = []
    for index, state in enumerate(states):
        key = state.tobytes()
        if key not in keys:
            keys[key] = None
            new_indexes.append(index)
    return states[new_indexes]


def _survive(
    states: Ints, values: Floats, luck: Generator
) -> tuple[Ints, Floats, NDArray[np.intp], Floats]:
    """The best POPULATION by front, then by distance from the others: (states, values, front,
    distance)."""
    rank = fronts(values)
    lonely = crowding(values, rank)
    order = np.lexsort((luck.random(len(values)), -lonely, rank))[:POPULATION]
    return states[order], values[order], rank[order], lonely[order]


def _tournament(values: Floats, lonely: Floats, winners: int, luck: Generator) -> NDArray[np.intp]:
    """Of two drawn states, the one that dominates, otherwise the one farther from others, otherwise
    either."""
    rounds = -(-2 * winners // len(values))
    draws = np.concatenate([luck.permutation(len(values)) for _ in range(rounds)])[: 2 * winners]
    first, second = draws[:winners], draws[winners:]
    is_no_more, is_no_less = values[first] <= values[second], values[first] >= values[second]
    wins = np.where(is_no_more.all(axis=1) & ~is_no_less.all(axis=1), 1, 0) - np.where(
        is_no_less.all(axis=1) & ~is_no_more.all(axis=1), 1, 0
    )
    farther = np.where(lonely[first] > lonely[second], 1, 0) - np.where(
        lonely[first] < lonely[second], 1, 0
    )
    wins = np.where(wins == 0, farther, wins)
    return np.where((wins > 0) | ((wins == 0) & (luck.random(winners) < 0.5)), first, second)


def _mutate(problem: Problem, states: Ints, luck: Generator) -> Ints:
    """Some rows return to the present state, some elements are cleared, some grow. About one job
    grows of those that fit on a node with a free GPU, and one of those that are already there."""
    many, jobs, nodes = states.shape
    is_reset = luck.random((many, jobs), dtype=np.float32) < RESET
    states = np.where(is_reset[:, :, None], problem.base, states)
    at, job = np.nonzero(luck.random((many, jobs), dtype=np.float32) < SHRINK)
    rows = states[at, job]
    rows[luck.random(rows.shape, dtype=np.float32) < SHRINK] = 0
    states[at, job] = rows
    # Parents that exchanged jobs may want more than there is.
    free = np.maximum(problem.capacity - states.sum(axis=1, dtype=np.int16), 0)
    allowed = problem.room > 0
    fits = allowed & (free > 0)[:, None, :]
    is_there = fits & (states > 0)
    anybody = (1.0 / np.maximum(allowed.sum(axis=0), 1)).astype(np.float32)
    grows = luck.random((many, jobs, nodes), dtype=np.float32) < anybody
    grows &= fits
    state, row_job, node = np.nonzero(is_there)
    tenants = np.maximum(is_there.sum(axis=1), 1)
    hits = luck.random(len(state)) * tenants[state, node] < 1.0
    grows[state[hits], row_job[hits], node[hits]] = True
    state, row_job, node = np.nonzero(grows)
    replicas = states[state, row_job, node]
    new_seats = _unseated_pairs(problem, states, state, row_job)
    span = problem.room[row_job, node] + 1 - replicas
    states[state, row_job, node] = replicas + (luck.random(len(state)) * span).astype(np.int16)
    if len(new_seats):
        _seat(problem, states, free, new_seats, luck)
    return states


def _unseated_pairs(
    problem: Problem, states: Ints, state: NDArray[np.intp], job: NDArray[np.intp]
) -> NDArray[np.intp]:
    """(state, job) among those that grow for which fewer than `least` make no sense: gangs, and
    jobs that have nothing yet."""
    has_least = problem.least > 1
    if not has_least.any():
        return np.zeros((0, 2), dtype=np.intp)
    is_gang = problem.least == problem.most
    is_picked = has_least[job] & (is_gang[job] | ~states[state, job].any(axis=1))
    return np.unique(np.stack([state[is_picked], job[is_picked]], axis=1), axis=0)


def _seat(
    problem: Problem, states: Ints, free: Ints, new_seats: NDArray[np.intp], luck: Generator
) -> None:
    """Give these exactly their minimum: on a node with room for all of it, otherwise on several if
    they may."""
    state, job = new_seats.T
    room = np.minimum(free[state], problem.room[job])
    least = problem.least[job]
    score = luck.random(room.shape) * (room >= least[:, None])
    rows = np.zeros_like(room)
    on_one = score.any(axis=1)
    rows[np.flatnonzero(on_one), score.argmax(axis=1)[on_one]] = least[on_one]
    wide = ~on_one & (problem.most_nodes[job] > 1)
    rows[wide] = _trim(room[wide], least[wide], problem.most_nodes[job][wide], luck)
    states[state, job] = rows


def repair(problem: Problem, states: Ints, luck: Generator) -> Ints:
    """Make states feasible, in place, in Pollux's order: one job of several nodes per node, the
    maximum of jobs, the capacity of nodes (earlier jobs first), the minimum of jobs."""
    wide = states > 0
    wide &= (np.count_nonzero(states, axis=2) > 1)[:, :, None]
    at, node = np.nonzero(wide.sum(axis=1) + problem.spanned > 1)
    if len(at):
        column = wide[at, :, node]
        is_later = column & (column.cumsum(axis=1) + problem.spanned[node][:, None] > 1)
        states[at, :, node] = np.where(is_later, 0, states[at, :, node])
    too_many = states.sum(axis=2, dtype=np.int16) > problem.most
    at, job = np.nonzero(too_many | (np.count_nonzero(states, axis=2) > problem.most_nodes))
    if len(at):
        states[at, job] = _trim(states[at, job], problem.most[job], problem.most_nodes[job], luck)
    at, node = np.nonzero(states.sum(axis=1, dtype=np.int16) > problem.capacity)
    if len(at):
        sums = np.minimum(states[at, :, node].cumsum(axis=1), problem.capacity[node][:, None])
        states[at, :, node] = _steps(sums)
    states[states.sum(axis=2, dtype=np.int16) < problem.least] = 0
    return states


def _trim(rows: Ints, most: Ints, most_nodes: Ints, luck: Generator) -> Ints:
    """Rows limited to their maximum of replicas and nodes, with nodes in random order."""
    order = np.argsort(luck.random(rows.shape, dtype=np.float32), axis=1)
    at = np.arange(len(rows))[:, None]
    shuffled = _steps(np.minimum(rows[at, order].cumsum(axis=1), most[:, None]))
    shuffled[(shuffled > 0).cumsum(axis=1) > most_nodes[:, None]] = 0
    cut = np.zeros_like(rows)
    cut[at, order] = shuffled
    return cut


def _steps(sums: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows with these running sums, in place."""
    sums[:, 1:] -= sums[:, :-1].copy()
    return sums


def fronts(values: Floats) -> NDArray[np.intp]:
    """The front of each row of `values` (n x 2). In front 0, no other row is as good in both and
    better in one. O(n log n): in the order of the first value, a front dominates a point if the
    least second value that it has seen is no larger."""
    order = np.lexsort((values[:, 1], values[:, 0]))
    front = 0
    least: list[float] = []
    sorted_ranks: list[int] = []
    previous_point: list[float] = []
    for point in values[order].tolist():
        if point != previous_point:
            front = bisect_right(least, point[1])
            least[front : front + 1] = [point[1]]
            previous_point = point
        sorted_ranks.append(front)
    ranks = np.empty(len(values), dtype=np.intp)
    ranks[order] = sorted_ranks
    return ranks


def crowding(values: Floats, front: NDArray[np.intp]) -> Floats:
    """The distance between a point's neighbours in its front, each value in units of the front's
    range. Infinite at its ends, 0 for the second and later of equal points."""
    distance = np.zeros(len(values))
    order = np.lexsort((values[:, 1], values[:, 0], front))
    sorted_values, sorted_fronts = values[order], front[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (sorted_values[1:] != sorted_values[:-1]).any(axis=1) | (
        sorted_fronts[1:] != sorted_fronts[:-1]
    )
    order, sorted_values = order[is_first], sorted_values[is_first]
    sorted_fronts = sorted_fronts[is_first]
    first = np.flatnonzero(np.diff(sorted_fronts, prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    extent = np.abs(sorted_values[last] - sorted_values[first])[
        np.searchsorted(first, np.arange(len(order)), side="right") - 1
    ]
    gaps = np.abs(sorted_values[2:] - sorted_values[:-2]) / np.where(
        extent[1:-1] > 0, extent[1:-1], 1.0
    )
    distances = np.full(len(order), np.inf)
    distances[1:-1] = gaps.sum(axis=1) / 2.0
    distances[first] = distances[last] = np.inf
    distance[order] = distances
    return distance
