"""What a policy answers, checked where it enters, because anybody may write a policy. A policy that
errs about one job may err about all, so one fault makes the whole answer wrong. A shape that finds
no room is no fault. Its job waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from gpq.core.feasibility.device_status import gpus
from gpq.core.feasibility.leases import may_start
from gpq.core.feasibility.shapes import gpu_range, gpu_types, is_mixed, shape_on
from gpq.core.freedoms import bind
from gpq.core.model.jobs import ANY_NUMBER, Allotment, DesiredState, Job, Level
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import Layout, Shape
from gpq.core.model.policy import Policy, shape_of
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.errors import Refused


class WrongAnswer(Refused):
    """`message` names the policy and the first fault of its answer."""


def ask(policy: Policy, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
    """What `policy` gives to whom. Raises WrongAnswer, or what the policy raises."""
    answer = policy.allocate(snapshot)
    if isinstance(answer, Mapping):
        answer = dict(answer)  # a mapping of their own may change between two looks
    if reason := fault(answer, snapshot):
        raise WrongAnswer(
            f"policy {snapshot.config.policy} answered wrongly: {reason}",
            "`gpq config policies` lists others",
        )
    return answer


def fault(allotments: object, snapshot: Snapshot) -> str:
    """The first thing that is wrong with the answer to `snapshot`, or ""."""
    if not isinstance(allotments, Mapping):
        return f"{_word(allotments)} is not a mapping from jobs to GPUs"
    for name, allotment in allotments.items():
        if type(name) is not int or name not in snapshot.jobs:
            return f"it named {_word(name)} as a job, but was not asked about such a job"
        job = snapshot.jobs[JobId(name)]
        for flaw in chain(_value_flaws(allotment), _job_flaws(job, allotment, snapshot)):
            return f"for job {name} it named {flaw}"
    return ""


def _value_flaws(allotment: object) -> Iterator[str]:
    """What no job could have. Each check of an allotment relies on those before it."""
    if isinstance(allotment, Layout):
        counts: list[object] = [count for _, count in allotment.parts]
    elif isinstance(allotment, Shape):
        counts = [allotment.replicas, allotment.nodes]
    else:
        yield f"{_word(allotment)}, which is neither a Shape nor a Layout"
        return
    # by type, because True is an int too
    if not all(type(count) is int and 0 < count <= ANY_NUMBER for count in counts):
        yield f"counts other than whole numbers from 1 to {ANY_NUMBER}"
    gpu_type: object = allotment.gpu_type
    if not isinstance(gpu_type, str):
        yield f"{_word(gpu_type)} as the GPU type"
    shape = shape_of(allotment)
    if not 0 < shape.nodes <= shape.replicas:
        yield f"{gpus(shape.replicas)} on {shape.nodes} servers"


def _job_flaws(job: Job, allotment: Allotment, snapshot: Snapshot) -> Iterator[str]:
    """What this job may not have now. It may always keep what it holds."""
    shape, present = shape_of(allotment), job.placement
    parts = allotment.parts if isinstance(allotment, Layout) else ()
    if present and shape == shape_on(present, snapshot) and parts in ((), present.counts):
        return
    if not (job.wish is DesiredState.RUN if present else may_start(snapshot, job)):
        yield f"{gpus(shape.replicas)}, but the job may get none now"
    if shape.nodes > 1 and job.spec.level is not Level.SCRIPT:
        yield f"{shape.nodes} servers, but the job needs all of its GPUs on one"
    fewest, most = gpu_range(bind(job, snapshot), ANY_NUMBER, shape.gpu_type)
    if shape.replicas != job.replicas and shape.replicas < fewest:
        yield f"{gpus(shape.replicas)}, but the job needs {fewest}"
    if shape.replicas != job.replicas and shape.replicas > most:
        yield f"{gpus(shape.replicas)}, but the job may have at most {most}"
    yield from _type_flaws(job, shape.gpu_type, snapshot)
    for name, count in parts:
        node = snapshot.nodes.get(name)
        if node is None:
            yield f"{gpus(count)} on server {_word(name)}, which does not exist"
        elif node.state is not NodeState.UP:
            yield f"{gpus(count)} on server {name}, which does not answer"
        elif count > len(node.devices):
            yield f"{gpus(count)} on server {name}, which offers {len(node.devices)}"


def _type_flaws(job: Job, gpu_type: str, snapshot: Snapshot) -> Iterator[str]:
    if not gpu_type:
        if is_mixed(snapshot):
            yield "no GPU type, although there are several"
    elif gpu_type not in gpu_types(snapshot) and not any(
        device.type == gpu_type for node in snapshot.nodes.values() for device in node.devices
    ):
        yield f"the GPU type {_word(gpu_type)}, which no server has"
    elif job.spec.gpu_type.casefold() not in gpu_type.casefold():
        yield f"the GPU type {gpu_type}, but the job asks for {job.spec.gpu_type}"


def _word(value: object) -> str:
    """How to print what a policy named. Only texts and numbers, because others may have no end."""
    if isinstance(value, str):
        return f"{value!r:.60}"
    if type(value) is int and abs(value) <= ANY_NUMBER:
        return str(value)
    return f"a value of type {type(value).__name__}"
