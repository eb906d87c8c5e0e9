"""New jobs: checked against what the servers have, queued in one transaction, or tried on a copy
that is thrown away. One submission may be an array: `{index}` and the names of a sweep are replaced
in what each job runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from gpq import config, outward, pace, paths
from gpq.control import dependencies, detail, submission
from gpq.control.controller import Controller
from gpq.control.reader import Reader
from gpq.control.selectors import MOST_ELEMENTS
from gpq.core.feasibility import environments
from gpq.core.model.actions import Launch
from gpq.core.model.events import Submitted
from gpq.core.model.jobs import Dependency, JobSpec, JobState, Level, Seat, note_for_waiters
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.rounds import decide
from gpq.core.state.apply_events import fold
from gpq.errors import Refused, UsageError
from gpq.pace import deadline, left
from gpq.ports import History, Peer
from gpq.rpc import job_answers, requests
from gpq.rpc.requests import ArrayMessage, fill_placeholders

NOTHING: Mapping[str, Sequence[str]] = MappingProxyType({})
ENDING_PATIENCE = 10.0  # until a job that has left the snapshot is in the history
PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
ID, INDEX, SIZE, SWEEP = "GPQ_ARRAY_ID", "GPQ_ARRAY_INDEX", "GPQ_ARRAY_SIZE", "GPQ_SWEEP_"
T = TypeVar("T")


def ask_settled(controller: Controller, build: Callable[[Snapshot], tuple[Sequence[Any], T]]) -> T:
    """`Controller.ask`, repeated while a job whose end `build` needs to know is just ending."""
    until = deadline(ENDING_PATIENCE)
    while True:
        snapshot = controller.snapshot
        try:
            return controller.ask(build)
        except dependencies.StillEnding:
            with controller.changed:
                if controller.snapshot is snapshot:
                    controller.changed.wait(min(left(until), 1.0))
            if left(until) <= 0:
                raise Refused("a job that this one waits for is ending now", "try again") from None


class Submitting:
    """`grace` and `lease` (seconds) and `notify` are those of jobs that ask for none. `accept` has
    suspicions by script. `node_names` returns the configured servers."""

    def __init__(
        self,
        controller: Controller,
        past: History,
        node_names: Callable[[], Collection[str]],
        *,
        grace: float,
        lease: float,
        notify: outward.Notify = outward.NO_TARGETS,
        accept: Mapping[str, Sequence[str]] = NOTHING,
    ) -> None:
        self._controller = controller
        self._past = past
        self._node_names = node_names
        self._grace, self._lease, self._notify, self._accept = grace, lease, notify, accept
        self._born = deadline(0.0)

    def submit(self, request: requests.Submit, peer: Peer) -> msgspec.Struct:
        """Submitted, or the result of a dry run. Raises GpqError, and then queues nothing."""
        notify = self.targets(request.spec.notify)
        spec = submission.spec_of(
            request.spec, peer.user, peer.uid, self._grace, self._lease, notify
        )
        spec = submission.accepting(spec, self._accept)
        if request.array is not None:
            check_array(request.array)
            if spec.console:
                raise UsageError("`gpq run` runs one command, not an array", "use `gpq submit`")
        if spec.min_gpus > 1 or spec.gpu_type or spec.min_gpu_memory_mib:
            self._wait_for_nodes()
        submission.fits(self._controller.snapshot, spec, self._node_names())
        after = dependencies.dependencies(request.spec.after, self._controller.snapshot, self._past)
        spec = spec.having(after=after)
        if request.dry_run:
            return self._dry_run(request, spec)
        for archive in spec.archives:
            keep_archive(archive)
        now = self._controller.world.now

        def build(snapshot: Snapshot) -> tuple[Sequence[Any], job_answers.Submitted]:
            submission.fits(snapshot, spec, self._node_names())
            awaits = self._open_dependencies(after, snapshot)
            specs = _specs(request, spec, snapshot)
            events = submission.submission_events(
                snapshot, specs, awaits, now(), on_hold=request.held
            )
            state = JobState.HELD if request.held else JobState.PENDING
            jobs = [int(event.job) for event in events if isinstance(event, Submitted)]
            ended = [dependency.job for dependency in after if dependency not in awaits]
            ended_jobs = self._past.history(ids=ended) if ended else ()
            remarks = [*warnings(spec), *filter(None, map(note_for_waiters, ended_jobs))]
            answer = job_answers.Submitted(snapshot.next_id, spec.name, str(state), remarks, jobs)
            return events, answer

        return ask_settled(self._controller, build)

    def targets(self, names: object) -> outward.Notify:
        """Whom a job may notify. If it names somebody, targets added since the daemon started are
        known as well."""
        if not names:
            return self._notify
        return self._notify._replace(targets=outward.notify(config.load().notify).targets)

    def _open_dependencies(
        self, after: Sequence[Dependency], snapshot: Snapshot
    ) -> tuple[Dependency, ...]:
        return dependencies.open_dependencies(
            after, snapshot, lambda names: self._past.history(ids=names), self._past.removed_ids
        )

    def _wait_for_nodes(self) -> None:
        """Right after the start the servers have not reported their devices yet, so a job that does
        not fit could not be refused."""
        controller = self._controller
        with controller.changed:
            controller.changed.wait_for(
                lambda: submission.nodes_known(controller.snapshot, self._node_names()),
                timeout=left(self._born + pace.FIRST_NEWS),
            )

    def _dry_run(self, request: requests.Submit, spec: JobSpec) -> job_answers.DryRun:
        """A round on a copy that is thrown away. For an array it reports on the first job."""
        controller = self._controller
        now = controller.world.now()
        snapshot = replace(controller.snapshot, now=now)
        if spec.environment not in {environment for _, environment in snapshot.checks}:
            # no server has been asked for it yet: that happens at the submission
            spec = environments.without_environment(spec)
        specs = _specs(request, spec, snapshot)
        events = submission.submission_events(
            snapshot,
            specs,
            self._open_dependencies(spec.after, snapshot),
            now,
            on_hold=request.held,
        )
        name = next(event.job for event in events if isinstance(event, Submitted))
        # What was found missing still is: only a real submission is a reason to check again.
        snapshot = replace(fold(snapshot, events).snapshot, checks=snapshot.checks)
        decision = decide(snapshot, [], controller.policy, allocate=True)
        reader = Reader(decision.snapshot, decision.round, now, {})
        job = decision.snapshot.jobs[name]
        state = "held" if job.state is JobState.HELD else "pending"
        reasons = detail.explanation(reader, job).reasons
        starting_ids = {action.job for action in decision.actions if isinstance(action, Launch)}
        placement = None
        if decision.round is not None:
            placement = decision.round.placements.get(name)
        if name in starting_ids:
            state = "starting"
            if decision.round is not None and (motive := decision.round.motives.get(name)):
                reasons = [motive]
        if len(specs) > 1:
            at_once = sum(JobId(name + place) in starting_ids for place in range(len(specs)))
            reasons = [*reasons, f"{at_once} of {len(specs)} jobs would start at once"]
        return job_answers.DryRun(
            state, reader.parts(placement), reasons, [*reader.warnings(), *warnings(spec)]
        )


def _specs(request: requests.Submit, spec: JobSpec, snapshot: Snapshot) -> list[JobSpec]:
    if request.array is None:
        return [spec]
    return list(elements(spec, request.array, JobId(snapshot.next_id)))


def keep_archive(name: str) -> None:
    """Its age starts again, so that it is not removed before the job is known. Raises Refused if it
    is missing."""
    try:
        os.utime(os.path.join(paths.snapshots(), f"{name}.tar"))
    except OSError as error:
        raise Refused(
            f"the copy {name[:12]} of the code or stdin is missing: {error.strerror}",
            "submit the job again",
        ) from None


def warnings(spec: JobSpec) -> list[str]:
    """What the user may not have meant."""
    if spec.level is Level.BLACK_BOX and spec.max_batch_size:
        return ["--max-batch-size has no effect on a command"]
    return []


def elements(spec: JobSpec, array: ArrayMessage, name: JobId) -> Iterator[JobSpec]:
    """The specifications of the jobs. Their ids follow `name`, the id of the array. Raises
    UsageError."""
    check_array(array)
    for place, index in enumerate(array.indices):
        params = array.params[place] if array.params else {}
        words = {**params, "index": str(index)}
        env = {key: fill_placeholders(value, words) for key, value in spec.env}
        env.update({ID: str(name), INDEX: str(index), SIZE: str(len(array.indices))})
        env.update({f"{SWEEP}{key}": value for key, value in params.items()})
        yield spec.having(
            argv=tuple(fill_placeholders(word, words) for word in spec.argv),
            resume_argv=tuple(fill_placeholders(word, words) for word in spec.resume_argv),
            done_file=fill_placeholders(spec.done_file, words),
            env=tuple(sorted(env.items())),
            seat=Seat(name, index, len(array.indices), array.limit, tuple(params.items())),
        )


def check_array(array: ArrayMessage) -> None:
    """Raises UsageError."""
    count = len(array.indices)
    if not 1 <= count <= MOST_ELEMENTS:
        raise UsageError(
            f"invalid array of {count} jobs", f"an array has 1 to {MOST_ELEMENTS} jobs"
        )
    if len(set(array.indices)) < count or not all(0 <= index < 1 << 31 for index in array.indices):
        raise UsageError(
            "the indices of an array must be different whole numbers from 0", "e.g. --array 0-99"
        )
    if array.params and len(array.params) != count:
        raise UsageError(
            f"{count} indices with {len(array.params)} sets of parameters",
            "give one set for each index",
        )
    if not 0 <= array.limit <= MOST_ELEMENTS:
        raise UsageError(
            f"invalid limit %{array.limit}: expected 1 or more jobs at once",
            "e.g. --array 0-99%4",
        )
    for key, value in (pair for params in array.params for pair in params.items()):
        if not PARAM.fullmatch(key) or key == "index":
            raise UsageError(
                f"invalid name in the sweep: {key[:80]!r}",
                "use letters, digits and _, but not the name index",
            )
        if "\0" in value:
            raise UsageError(f"a value of {key} contains a NUL byte", "remove it")
