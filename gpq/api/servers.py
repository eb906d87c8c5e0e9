"""Servers from Python, with the code of `gpq nodes` and `gpq yield`: add, remove, drain and reserve
them, or give them back to their owner. Then the daemon, the settings, the notification targets and
the live view.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpq.api.handles import LOG, Onlooker, ask
from gpq.api.options import Duration, Moment, Selector, moment, seconds, selector
from gpq.client.connection import call
from gpq.errors import UsageError
from gpq.rpc import requests
from gpq.rpc.daemon_answers import DaemonInfo, TopView
from gpq.rpc.node_answers import Drained, Reserved, Yielded
from gpq.views.queue import is_query

if TYPE_CHECKING:
    from gpq.options.json_answers import NodeRemoved, NodesAdded, Sent, Settings, Targets


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

    return json_answers.NodeRemoved(node, changes.remove(node, _note, force=force))


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
    return changes.yield_server(node, length)


def _note(what: str, hint: str) -> None:
    LOG.warning("%s", f"{what}: {hint}" if hint else what)


def top(*jobs: Selector) -> TopView:
    """Servers, jobs, users and the last re-allocations in one answer, as `gpq top --json` prints
    them.

    Takes the same selectors and queries as `gpq.status`.
    """
    words = [selector(job) for job in jobs]
    query = [word for word in words if is_query(word)]
    return ask(requests.Top([word for word in words if word not in query], query), TopView)


def daemon_status() -> DaemonInfo:
    """The daemon's version, policy, rounds and memory, as `gpq daemon status --json` prints them.

    Starts no daemon: raises gpq.errors.DaemonUnreachable if none runs.
    """
    from gpq.client import daemon_control

    return daemon_control.status()


def start_daemon(metrics: str = "") -> bool:
    """Start the daemon. Returns False if one runs already.

    You rarely need this, because every call that needs the daemon starts it. `metrics` is
    "[ADDR:]PORT", where the daemon serves Prometheus metrics. Raises gpq.errors.Refused if a daemon
    runs that serves them elsewhere or not at all.
    """
    from gpq.client import daemon_control

    return daemon_control.start(metrics)


def stop_daemon() -> bool:
    """Stop the daemon. Jobs run on, and the next daemon finds them. Returns False if none ran."""
    from gpq.client import daemon_control

    return daemon_control.stop()


def daemon_log(lines: int = 100) -> list[str]:
    """The last lines of the daemon's log. Raises gpq.errors.NotFound if there is no log."""
    from gpq.client import daemon_control

    return daemon_control.logs(lines)


def settings() -> Settings:
    """All settings in effect, defaults included, by their names in config.toml. URLs of
    notification targets are left out.

    Raises gpq.errors.UsageError if the file is invalid.
    """
    from dataclasses import asdict

    from gpq import config, outward
    from gpq.options import json_answers
    from gpq.policies.registry import POLICIES

    file_config = config.load(policies=POLICIES)
    return json_answers.Settings(
        **{**asdict(file_config), "notify": outward.without_urls(file_config.notify)}
    )


def notify_targets() -> Targets:
    """The notification targets, as `gpq notify list --json` prints them: names and kinds of
    services, without URLs."""
    from gpq.options import targets

    return targets.list_targets()


def notify_test(*names: str) -> Sent:
    """Send a test message to each target now. The answer says which services accepted it.

    Raises gpq.errors.UsageError for an unknown name.
    """
    from gpq.options import json_answers, targets

    return json_answers.Sent(list(targets.try_targets(names)))
