"""gpq: the daemon here, the servers of a laboratory behind ssh."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.recovery.system import Told, Variant
from gpq import __version__
from tests.e2e.harness import ENDED
from tests.lab.daemons import HOME, LabDaemon
from tests.lab.lab import Lab

SLOTS = 2  # of each server


class Gpq:
    """`silence`: seconds of the lease of the variant that has one."""

    node = "$(uname -n)"
    home = HOME
    better: Sequence[str] = ()
    name = f"gpq {__version__}"

    def __init__(self, lab: Lab, silence: float) -> None:
        self.lab = lab
        self.slots = SLOTS * len(lab.servers)
        self.variants: Sequence[Variant] = (
            Variant("default"),
            Variant(f"--requeue-on-lost {silence:.0f}s", {"requeue_on_lost": silence}, moves=True),
        )
        self.settings: Sequence[str] = (
            (
                f"gpq: {len(lab.servers)} servers behind ssh with {SLOTS} CPU slots each, defaults;"
                " asked through its socket, as its commands do"
            ),
        )
        self.daemon = LabDaemon(lab, {server.name: SLOTS for server in lab}, policy="goodput")

    def __enter__(self) -> Gpq:
        self.daemon.__enter__()
        self.daemon.up()
        return self

    def __exit__(self, *details: object) -> None:
        self.daemon.__exit__(*details)

    def homes(self) -> list[Path]:
        return [server.home for server in self.lab]

    def submit(self, token: str, script: str, **options: object) -> str:
        return str(self.daemon.run(script, name=token, **options))

    def jobs(self) -> dict[str, Told]:
        return {
            row.name: Told(
                "unknown" if row.unknown else row.state, row.state in ENDED, row.exit_status
            )
            for row in self.daemon.rows().jobs
        }

    def kill(self) -> None:
        self.daemon.kill()

    def restart(self) -> None:
        self.daemon.start()
        self.daemon.up()

    def cut(self, node: str) -> None:
        self.lab[node].link.cut()

    def heal(self, node: str) -> None:
        self.lab[node].link.heal()
