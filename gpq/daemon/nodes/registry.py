"""Which servers are configured, and what follows if that changes while the daemon runs. Talks to
none of them itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from gpq import config
from gpq.config import FileConfig
from gpq.control.controller import Controller
from gpq.core.model.events import Event, NodeRemoved
from gpq.core.model.jobs import HOLDS_DEVICES
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId
from gpq.daemon.nodes.world import LiveWorld
from gpq.errors import Refused
from gpq.policies.registry import POLICIES
from gpq.rpc.node_answers import Reloaded


class NodeRegistry:
    """`settings` is config.toml as it was read, and `fingerprint` is that of the file at that
    time."""

    def __init__(
        self, world: LiveWorld, controller: Controller, settings: FileConfig, fingerprint: str
    ) -> None:
        self._world = world
        self._controller = controller
        self._settings = settings
        self._fingerprint = fingerprint
        self._lock = threading.Lock()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._settings.nodes)

    def addresses(self) -> dict[str, tuple[str, int]]:
        """Host and port of the servers behind ssh. No user, and no option of ssh."""
        return {
            name: (node.host.rpartition("@")[2], node.port)
            for name, node in self._settings.nodes.items()
            if node.host
        }

    def config_changed(self) -> bool:
        """Does the file contain something that is not in effect yet?"""
        return config.fingerprint() != self._fingerprint

    def reload(self, *, force: bool) -> Reloaded:
        """Take in servers that were added to the file and release those that were removed. All
        other changes need a new daemon.

        Raises UsageError for an invalid file. Raises Refused for a server with jobs unless `force`,
        and then changes nothing.
        """
        with self._lock:
            fingerprint = config.fingerprint()
            before, after = self._settings.nodes, config.load(policies=POLICIES)
            removed_names = sorted(set(before) - set(after.nodes))
            added_names = sorted(set(after.nodes) - set(before))
            for name in removed_names:
                _check_free(self._controller.snapshot, name, force=force)
            for name in removed_names:
                self._remove(name, force=force)
            for name in added_names:
                self._world.add(name, after.nodes[name])
                self._settings = replace(
                    self._settings, nodes={**self._settings.nodes, name: after.nodes[name]}
                )
            if self._settings == after:
                self._fingerprint = fingerprint
            return Reloaded(
                added=added_names, removed=removed_names, restart_needed=self._settings != after
            )

    def _remove(self, name: str, *, force: bool) -> None:
        """First the link goes, then the server, so that no news brings it back and no round in
        between uses it."""
        node_config = self._settings.nodes[name]
        self._world.remove(name)
        now = self._controller.world.now

        def build(snapshot: Snapshot) -> tuple[Sequence[Event], None]:
            _check_free(snapshot, name, force=force)
            return [NodeRemoved(now(), NodeId(name))], None

        try:
            self._controller.ask(build)
        except BaseException:
            self._world.add(name, node_config)
            raise
        nodes = {node: config for node, config in self._settings.nodes.items() if node != name}
        self._settings = replace(self._settings, nodes=nodes)


def _check_free(snapshot: Snapshot, name: str, *, force: bool) -> None:
    job_ids = [
        str(job.id)
        for job in snapshot.jobs.values()
        if job.state in HOLDS_DEVICES and name in job.nodes
    ]
    if job_ids and not force:
        raise Refused(
            f"there are jobs on {name}: {', '.join(job_ids)}",
            f"`gpq nodes drain {name}` moves away the jobs that can leave. Wait for the others, or"
            " end them with `gpq cancel`. With --force they stay there, and gpq loses contact",
        )
