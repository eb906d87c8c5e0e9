"""Where and how an attempt of a job runs: shapes, layouts, placements, the ordered batch, and how
it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpq.core.model.units import DeviceId, NodeId, Seconds


@dataclass(frozen=True, slots=True)
class Shape:
    """How many GPUs, over how many servers (Pollux's K, N), of which type. The type is named if
    there are several types of devices (`shapes.is_mixed`), otherwise ""."""

    replicas: int
    nodes: int = 1
    gpu_type: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """A shape whose servers a policy chose itself: (server, number of its GPUs), sorted by server.
    All GPUs have one type. `devices`: exactly which ones, of each server. Empty: any."""

    parts: tuple[tuple[NodeId, int], ...]
    gpu_type: str = ""
    devices: tuple[tuple[DeviceId, ...], ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError if a server is named twice or gives no GPU, or if `devices` do not
        match."""
        if len({node for node, _ in self.parts}) < len(self.parts) or any(
            count < 1 for _, count in self.parts
        ):
            raise ValueError(
                f"a layout names a server twice, or takes nothing of one: {self.parts}"
            )
        counts = [len(set(ids)) for ids in self.devices]
        if self.devices and counts != [count for _, count in self.parts]:
            raise ValueError(f"a layout names other devices than it counts: {self}")

    @classmethod
    def of(cls, placement: Placement, gpu_type: str) -> Layout:
        """Exactly these devices."""
        return cls(placement.counts, gpu_type, tuple(ids for _, ids in placement.parts))

    @property
    def shape(self) -> Shape:
        return Shape(sum(count for _, count in self.parts), len(self.parts), self.gpu_type)


@dataclass(frozen=True, slots=True)
class Placement:
    """Exactly which devices: (server, its devices), sorted by server. The position is the node
    rank. `gpu_type` follows from the devices (all of one type) and does not count in
    comparisons."""

    parts: tuple[tuple[NodeId, tuple[DeviceId, ...]], ...]
    gpu_type: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError if a server is named twice or has no devices, or if a device is named
        twice. A job with such a placement would never end."""
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
        """(server, number of devices), sorted by server: the parts of a `Layout`."""
        return tuple((node, len(devices)) for node, devices in self.parts)

    @property
    def devices(self) -> frozenset[tuple[NodeId, DeviceId]]:
        return frozenset((node, device) for node, devices in self.parts for device in devices)

    def __str__(self) -> str:
        return " + ".join(f"{node}:{','.join(devices)}" for node, devices in self.parts)


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The batch that gpq orders. `seq` grows. 0/0 leaves the choice to the library."""

    seq: int = 0
    atomic_batch: int = 0
    accum_steps: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended on one server (wire.ExitRecord)."""

    code: int | None
    signal: int | None = None
    stopped: bool = False
    asked: str = ""
    ended_at: Seconds = 0.0  # by the daemon's clock. 0: not known
    oom: bool = False
    note: str = ""
    # nobody saw it: the server rebooted, the shim was killed, or the server was silent beyond the
    # lease
    lost: bool = False
    fenced: bool = False  # ended by its lease
    # the user's program did not start: the "port" was taken, or on the "network" its servers did
    # not meet
    unlaunched: str = ""
    excused: str = ""  # why its end is not the job's failure: gpq chose a batch that did not fit
    cause: str = ""  # what failed first there
    victim: bool = False  # it failed because the attempt's processes on another server were gone
    # code 0 after a stop request, and `evidence` says that it had finished
    finished: bool = False
    evidence: str = ""

    @property
    def status(self) -> int:
        """The status as a shell would give it: the code, 128 + n for signal n, or 1 if it is not
        known."""
        if self.code is not None:
            return self.code
        return 128 + self.signal if self.signal else 1


@dataclass(frozen=True, slots=True)
class FilesAt:
    """Where a job's newest checkpoint is, if it has one: the server, and the folder that others may
    share with it."""

    node: NodeId
    storage: str = ""
    # an attempt that was stopped there, or before, proved a checkpoint by its exit code
    proved: bool = False
    # why gpq cannot copy it to another folder, until an attempt has written there again
    stays: str = ""
    looked_at: Seconds = 0.0  # when gpq found that out
