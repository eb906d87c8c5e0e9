"""Slurm from Debian's packages on one machine: slurmctld here, a slurmd in the network of each
server of a laboratory."""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.recovery import processes
from benchmarks.recovery.system import Told, Variant
from tests.lab.lab import Lab
from tests.support.waiting import wait_until

SLOTS = 2  # of each server
OVER = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "NODE_FAIL",
    "TIMEOUT",
    "BOOT_FAIL",
    "OUT_OF_MEMORY",
    "DEADLINE",
    "PREEMPTED",
)
JOB = re.compile(
    r"JobId=(\d+) JobName=(\S+).*? JobState=(\w+) .*?Restarts=(\d+) .*?ExitCode=(\d+):(\d+)"
)
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
}

CONFIGURATION = """\
ClusterName=recovery
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
SlurmdTimeout={silence:.0f}
MinJobAge=3600
MailProg=/bin/true
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def told(listed: str) -> dict[str, Told]:
    """The output of `scontrol --oneliner show jobs`, by job name. A job that was ended from outside
    has no exit code."""
    found = {}
    for line in listed.splitlines():
        if match := JOB.match(line):
            _, name, state, restarts, code, number = match.groups()
            own = state in ("COMPLETED", "FAILED") and number == "0"
            word = state.lower() + (" again" if state == "RUNNING" and restarts != "0" else "")
            found[name] = Told(word, state in OVER, int(code) if own else None)
    return found


class Slurm:
    """`silence`: seconds after which a server that does not answer counts as down (Slurm's default
    is 300)."""

    node = "$SLURMD_NODENAME"
    variants: Sequence[Variant] = (
        Variant("JobRequeue=1, the default", moves=True),
        Variant("sbatch --no-requeue", {"requeue": False}),
    )
    better: Sequence[str] = (
        (
            "Slurm writes new jobs to StateSaveLocation some seconds after it acknowledged them. No"
            " setting for that is in slurm.conf(5); `systemctl stop slurmctld` writes all of it"
            " first, kill -9, out of memory or a power cut do not."
        ),
        (
            "`sbatch --no-requeue` or JobRequeue=0: no second run; SlurmdTimeout=0: no server is"
            " given up for its silence. Both leave it to people to start again what really was"
            " lost. A longer SlurmdTimeout (300 is the default) only makes it rarer."
        ),
        (
            "A requeued job waits for cred_expire (AuthInfo, 120 s) after its server was given up:"
            " part of the time until its second run."
        ),
    )

    def __init__(self, lab: Lab, silence: float) -> None:
        self.lab = lab
        self.silence = silence
        self.slots = SLOTS * len(lab.servers)
        self.folder = Path(tempfile.mkdtemp(prefix="gpq-slurm-"))
        self.home = str(self.folder)
        self.env = processes.environment(self.home, {"SLURM_CONF": f"{self.home}/slurm.conf"})
        self.name = f"Slurm {processes.say(['slurmctld', '-V'], self.env).split()[-1]}"
        self.settings: Sequence[str] = (
            (
                f"Slurm: Debian's packages, {len(lab.servers)} slurmd with {SLOTS} CPUs each,"
                f" SlurmdTimeout={silence:.0f} (default: 300), JobRequeue=1, ReturnToService=2, no"
                " slurmdbd; else its defaults; asked with sbatch and scontrol"
            ),
        )
        self._controller: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Slurm:
        try:
            self._configure()
            self._start(
                "munged",
                "--foreground",
                "--force",
                f"--key-file={self.home}/munge.key",
                f"--socket={self.home}/munge.socket",
                f"--pid-file={self.home}/munge.pid",
                f"--log-file={self.home}/munge.log",
                f"--seed-file={self.home}/munge.seed",
            )
            wait_until((self.folder / "munge.socket").exists, "munged listens")
            for server in self.lab:
                self._start(
                    *server.network_argv("slurmd", "-D", "-N", server.name),
                    called=f"slurmd-{server.name}",
                )
            self.restart()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        processes.end(self.home)
        shutil.rmtree(self.folder)

    def _configure(self) -> None:
        address = f"{next(iter(self.lab)).address.rpartition('.')[0]}.1"
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(
            host=host,
            address=address,
            port=_free_port(address),
            folder=self.folder,
            silence=self.silence,
        )
        for number, server in enumerate(self.lab):
            text += (
                f"NodeName={server.name} NodeHostname={host} NodeAddr={server.address}"
                f" Port={17000 + number} CPUs={SLOTS} State=UNKNOWN\n"
            )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))

    def _start(self, *argv: str, called: str = "") -> subprocess.Popen[bytes]:
        return processes.start(argv, self.env, self.folder / f"{called or argv[0]}.log")

    # -- as a user has it

    def homes(self) -> list[Path]:
        return [self.folder]

    def submit(self, token: str, script: str, **options: object) -> str:
        more = [] if options.get("requeue", True) else ["--no-requeue"]
        argv = [
            "sbatch",
            "--parsable",
            f"--job-name={token}",
            "--output=/dev/null",
            f"--chdir={self.home}",
            *more,
        ]
        return processes.say([*argv, f"--wrap={script}"], self.env).strip()

    def jobs(self) -> dict[str, Told]:
        return told(processes.say(["scontrol", "--oneliner", "show", "jobs"], self.env))

    # -- what happens to it

    def kill(self) -> None:
        assert self._controller is not None
        self._controller.kill()
        self._controller.wait()

    def restart(self) -> None:
        self._controller = self._start("slurmctld", "-D")
        try:
            wait_until(self._serves, "slurmctld answers and has its servers")
        except AssertionError as error:
            logs = {
                path.name: path.read_text(errors="replace")[-1500:]
                for path in sorted(self.folder.glob("*.log"))
            }
            raise AssertionError(
                f"{error}\n" + "\n".join(f"{name}:\n{text}" for name, text in logs.items())
            ) from None

    def _serves(self) -> bool:
        argv = ["sinfo", "--noheader", "--Node", "--format=%T"]
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=60.0, check=False
        )
        states = done.stdout.split()
        known = all(state in ("idle", "mixed", "allocated", "completing") for state in states)
        return done.returncode == 0 and len(states) == len(self.lab.servers) and known

    def cut(self, node: str) -> None:
        self.lab[node].link.cut()

    def heal(self, node: str) -> None:
        self.lab[node].link.heal()


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
