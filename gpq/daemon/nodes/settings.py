"""The settings of a server's client: how the server is configured, and how to reach the daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpq.core.model.actions import Launch
from gpq.core.model.events import Event
from gpq.core.model.jobs import Attributes
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId, Seconds
from gpq.daemon.clock import UNNAMED, Clock, DaemonEpoch


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of one server, and of the jobs there."""

    node: NodeId
    library: str = ""  # folder there that holds only gpq_agent. "" if the agent must say it
    gpus: Sequence[str] = ()  # to use, by UUID or index. All if empty
    address: str = ""  # where peers reach it. "" if the agent must say it
    interface: str = ""  # over which it trains. "" for what the agent finds
    owner: str = ""  # its owner's user name there, or ""
    python: str = ""  # that runs scripts there. "" for the one of each job
    variables: Mapping[str, str] = field(default_factory=dict)  # of all jobs there
    # attributes of jobs that noted none, if the server is this machine
    attributes: Attributes | None = None
    setup_limit: Seconds = 600.0  # seconds that a setup may take
    # this long after a start, keep an interpreter ready for the next attempt. None: never
    standby_after: Seconds | None = None
    log_limit: int = 0  # bytes of each attempt's log. 0: no limit


@dataclass(frozen=True, slots=True)
class NodePorts:
    """What a client asks the daemon for, and reports to it. `view` gives the newest committed
    snapshot. `ready` says whether an attempt may start or lacks files."""

    clock: Clock
    inbox: Callable[[Sequence[Event]], None]
    view: Callable[[], Snapshot]
    epoch: DaemonEpoch = UNNAMED
    ready: Callable[[Launch], bool] = lambda launch: True
