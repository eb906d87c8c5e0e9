"""Servers from Python, by the code of `gpq nodes` and `gpq yield`: added, removed, drained,
reserved, handed back to an owner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpq.api.handles import LOG, Onlooker
from gpq.api.options import Duration, Moment, moment, seconds
from gpq.client.connection import call
from gpq.errors import UsageError
from gpq.rpc import requests
from gpq.rpc.node_answers import Drained, Reserved, Yielded

if TYPE_CHECKING:
    from gpq.options.json_answers import NodeRemoved, NodesAdded


def add_node(
    host: str,
    *,
    name: str = "",
    gpus: Sequence[int | str] = (),
    slots: int | None = None,
    python: str = "",
    port: int = 0,
    address: str = "",
    ssh_config: str | os.PathLike[str] = "",
    yes: bool = False,
) -> NodesAdded:
    """Add a server that ssh reaches without a question, as `gpq nodes add`: it is looked at and
    written to config.toml.

    `host`: "user@host", or a name of ~/.ssh/config. `gpus`: those to use, by index or UUID;
    `slots`: CPU slots instead. `yes`: accept a new host key, of which a remark is logged. Raises
    gpq.errors.Refused for a host key that is not known, and GpqError for a server that cannot be
    reached or has nothing to run jobs on; then nothing was written.
    """
    from gpq.options import json_answers
    from gpq.servers import adding, changes

    if slots is not None and not 0 <= slots <= 1024:
        raise UsageError(f"--slots {slots} is out of range", "from 0 to 1024")
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port} is out of range", "from 1 to 65535; 0 is ssh's own")
    gpu_names = [str(gpu) for gpu in ([gpus] if isinstance(gpus, str) else gpus)]
    request = adding.Wanted(
        host, name, gpu_names, slots, python, port, address, os.fspath(ssh_config)
    )
    node = json_answers.AddedNode(
        **adding.add(request, Onlooker(), yes=yes, quiet=True, asks=False)
    )
    return json_answers.NodesAdded([node], changes.taken_in([node.name], _note))


def remove_node(node: str, *, force: bool = False) -> NodeRemoved:
    """Take a server out of config.toml, as `gpq nodes remove`. Raises Refused while jobs are on it,
    unless `force`: they run on, and gpq hears no more of them. NotFound where config.toml has no
    such server."""
    from gpq.options import json_answers
    from gpq.servers import changes

    return json_answers.NodeRemoved(node, changes.removed(node, _note, force=force))


def drain(node: str, reason: str = "") -> Drained:
    """Place nothing new on a server until `undrain`: which jobs leave it, and which stay to their
    end. Raises NotFound."""
    return call(requests.Drain(node, reason), Drained)


def undrain(node: str) -> Drained:
    """Place jobs on a drained server again. Raises NotFound."""
    return call(requests.Undrain(node), Drained)


def reserve(
    node: str, *, user: str = "", start: Moment = "now", until: Moment = "", duration: Duration = ""
) -> Reserved:
    """Keep a server, or some of its GPUs ("gpu1:0,1"), for one user's jobs, or out of gpq's hands,
    as `gpq nodes reserve`.

    gpq.reserve("gpu1:0-1", user="ana", start="fri 18:00", duration="2d")

    It ends at `until` or after `duration`; a timedelta as `start` or `until` is from now. Raises
    gpq.errors.UsageError, NotFound for a server or GPU that is none, Refused where somebody has it
    reserved then.
    """
    from gpq.servers import changes

    length = "" if duration == "" else seconds(duration, "--for-duration")
    request = changes.reserve(node, user, moment(start, "--from"), moment(until, "--until"), length)
    return call(request, Reserved)


def unreserve(reservation: int | Reserved) -> Reserved:
    """Undo a reservation, by its number or by what `reserve` answered. Raises NotFound."""
    number = reservation.reservation.id if isinstance(reservation, Reserved) else reservation
    return call(requests.Unreserve(number), Reserved)


def yield_node(node: str = "local", duration: Duration = "8h", *, end: bool = False) -> Yielded:
    """Get your own server back from everybody's gpq for so long, or with `end` give it back, as
    `gpq yield`. Raises GpqError where it cannot be asked, NotFound for no such server."""
    from gpq.options.parsing import values
    from gpq.servers import changes

    length = 0.0 if end else values.seconds(seconds(duration, "--for"), "--for")
    return changes.yielded(node, length)


def _note(what: str, hint: str) -> None:
    LOG.warning("%s", f"{what}: {hint}" if hint else what)
