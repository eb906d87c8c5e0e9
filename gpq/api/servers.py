"""Servers from Python, with the code of `gpq nodes` and `gpq yield`: add, remove, drain and reserve
them, or give them back to their owner."""

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
    """Add a server, as `gpq nodes add` does: gpq looks at it and writes it to config.toml.

    ssh must reach `host` without asking anything. `host` is "user@host" or a name of ~/.ssh/config.
    `gpus` are the GPUs to use, by index or UUID. `slots` sets CPU slots instead. `yes` accepts a
    new host key and logs a remark. Raises gpq.errors.Refused for an unknown host key, and
    gpq.errors.GpqError if the server cannot be reached or has nothing to run jobs on. Then gpq
    writes nothing.
    """
    from gpq.options import json_answers
    from gpq.servers import adding, changes

    if slots is not None and not 0 <= slots <= 1024:
        raise UsageError(f"--slots {slots} is out of range", "give 0 to 1024")
    if not 0 <= port <= 65535:
        raise UsageError(
            f"--port {port} is out of range", "give 1 to 65535, or 0 for the port that ssh uses"
        )
    gpu_names = [str(gpu) for gpu in ([gpus] if isinstance(gpus, str) else gpus)]
    request = adding.Wanted(
        host, name, gpu_names, slots, python, port, address, os.fspath(ssh_config)
    )
    node = json_answers.AddedNode(
        **adding.add(request, Onlooker(), yes=yes, quiet=True, asks=False)
    )
    return json_answers.NodesAdded([node], changes.taken_in([node.name], _note))


def remove_node(node: str, *, force: bool = False) -> NodeRemoved:
    """Take a server out of config.toml, as `gpq nodes remove` does.

    Raises gpq.errors.Refused while jobs are on it. With `force` gpq removes it anyway: its jobs run
    on, and gpq hears no more of them. Raises gpq.errors.NotFound if config.toml has no such server.
    """
    from gpq.options import json_answers
    from gpq.servers import changes

    return json_answers.NodeRemoved(node, changes.removed(node, _note, force=force))


def drain(node: str, reason: str = "") -> Drained:
    """Start nothing new on a server until `undrain`. The answer says which jobs leave it and which
    stay until they end.

    Raises gpq.errors.NotFound if there is no such server.
    """
    return call(requests.Drain(node, reason), Drained)


def undrain(node: str) -> Drained:
    """Start jobs on a drained server again. Raises gpq.errors.NotFound if there is no such
    server."""
    return call(requests.Undrain(node), Drained)


def reserve(
    node: str, *, user: str = "", start: Moment = "now", until: Moment = "", duration: Duration = ""
) -> Reserved:
    """Reserve a server or some of its GPUs ("gpu1:0,1") for one user, or keep gpq off them, as
    `gpq nodes reserve` does::

        gpq.reserve("gpu1:0-1", user="ana", start="fri 18:00", duration="2d")

    Without `user`, gpq starts nothing on them. The reservation ends at `until` or after `duration`.
    A timedelta as `start` or `until` counts from now. Raises gpq.errors.UsageError for invalid
    values, gpq.errors.NotFound for an unknown server or GPU, and gpq.errors.Refused if somebody
    else has reserved them for that time.
    """
    from gpq.servers import changes

    length = "" if duration == "" else seconds(duration, "--for-duration")
    request = changes.reserve(node, user, moment(start, "--from"), moment(until, "--until"), length)
    return call(request, Reserved)


def unreserve(reservation: int | Reserved) -> Reserved:
    """Undo a reservation, by its number or by the answer of `reserve`. Raises gpq.errors.NotFound
    if there is none."""
    number = reservation.reservation.id if isinstance(reservation, Reserved) else reservation
    return call(requests.Unreserve(number), Reserved)


def yield_node(node: str = "local", duration: Duration = "8h", *, end: bool = False) -> Yielded:
    """Get your own server back from every user's gpq for `duration`, as `gpq yield` does. With
    `end`, let gpq use it again.

    Raises gpq.errors.GpqError if the server cannot be asked, and gpq.errors.NotFound if there is no
    such server.
    """
    from gpq.options import values
    from gpq.servers import changes

    length = 0.0 if end else values.seconds(seconds(duration, "--for"), "--for")
    return changes.yielded(node, length)


def _note(what: str, hint: str) -> None:
    LOG.warning("%s", f"{what}: {hint}" if hint else what)
