"""Where an attempt of a job runs and how: shapes, layouts, placements, the batch ordered, and how
it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpq.core.model.units import DeviceId, NodeId, Seconds


@dataclass(frozen=True, slots=True)
class Shape:
    """How many GPUs, over how many nodes (Pollux's K, N), of which type. The type is named where
    there are several types of devices (`shapes.is_mixed`), and is "" where all are of one."""

    replicas: int
    nodes: int = 1
    gpu_type: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """A shape whose nodes a policy chose itself: (node, how many of its GPUs), sorted by node. Of
    one type of GPUs."""

    parts: tuple[tuple[NodeId, int], ...]
    gpu_type: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for a node that is named twice, or of which nothing is taken."""
        if len({node for node, _ in self.parts}) < len(self.parts) or any(
            count < 1 for _, count in self.parts
        ):
            raise ValueError(
                f"a layout names a server twice, or takes nothing of one: {self.parts}"
            )

    @property
    def shape(self) -> Shape:
        return Shape(sum(count for _, count in self.parts), len(self.parts), self.gpu_type)


@dataclass(frozen=True, slots=True)
class Placement:
    """Exactly which devices: (node, its devices), sorted by node. Node rank is the position.
    `gpu_type` follows from the devices (all of one type) and does not count when two placements are
    compared."""

    parts: tuple[tuple[NodeId, tuple[DeviceId, ...]], ...]
    gpu_type: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for a node that is named twice, or without devices, or with one of them
        twice: a job that held such a placement would never be over."""
        if len({node for node, _ in self.parts}) < len(self.parts):
            raise ValueError(f"a placement names a server twice: {self}")
        for _, devices in self.parts:
            if not devices or len(set(devices)) < len(devices):
                raise ValueError(
                    f"a placement names a server without devices, or one of them twice: {self}"
                )

    @property
    def replicas(self) -> int:
        if len(self.parts) == 1:  # most often
            return len(self.parts[0][1])
        return sum(len(devices) for _, devices in self.parts)

    @property
    def shape(self) -> Shape:
        return Shape(self.replicas, len(self.parts))

    @property
    def counts(self) -> tuple[tuple[NodeId, int], ...]:
        """(node, how many devices), sorted by node: the parts of a `Layout`."""
        return tuple((node, len(devices)) for node, devices in self.parts)

    @property
    def devices(self) -> frozenset[tuple[NodeId, DeviceId]]:
        return frozenset((node, device) for node, devices in self.parts for device in devices)

    def __str__(self) -> str:
        return " + ".join(f"{node}:{','.join(devices)}" for node, devices in self.parts)


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The batch that a job is told to use. `seq` grows; 0/0 leaves the choice to the library."""

    seq: int = 0
    atomic_batch: int = 0
    accum_steps: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended on one node (wire.ExitRecord)."""

    code: int | None
    signal: int | None = None
    stopped: bool = False
    asked: str = ""
    ended_at: Seconds = 0.0  # by the daemon's clock; 0: not known
    oom: bool = False
    note: str = ""
    # nobody saw it: the node rebooted, the shim was killed, or the node was silent beyond the lease
    lost: bool = False
    fenced: bool = False  # ended by its lease
    # the user's program did not begin: "port" was taken, "network": its servers did not meet
    unlaunched: str = ""
    excused: str = ""  # why its end is no failure of the job's: gpq chose a batch that did not fit
    cause: str = ""  # what failed first there
    victim: bool = False  # it failed because processes of another node of the attempt were gone
    # code 0 after a stop was asked for, and `evidence` says that it had come to its end
    finished: bool = False
    evidence: str = ""

    @property
    def status(self) -> int:
        """As a shell would give it: the code, 128 + n for signal n, 1 when it is not known."""
        if self.code is not None:
            return self.code
        return 128 + self.signal if self.signal else 1


@dataclass(frozen=True, slots=True)
class FilesAt:
    """Where a job's newest checkpoint lies, if it has one: the node, and the folder that others may
    share with it."""

    node: NodeId
    storage: str = ""
    # an attempt that was stopped there, or before, said by its exit code that it keeps one
    proved: bool = False
    # why it cannot be brought to another folder, until an attempt has written there again
    stays: str = ""
    looked_at: Seconds = 0.0  # when that was found
