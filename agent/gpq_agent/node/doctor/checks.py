"""What a server checks, measures and tries for `gpq doctor`, and which files it has of a job: its
errands.

An errand may take long, or hang. So each runs in its own process with a time limit, and reports one
JSON object. If a process ends before it reports anything, that is an answer too. Errands change
nothing but a mark in the checkpoint folder, which `unmark` removes.
"""

import contextlib
import glob
import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from gpq_agent import wire
from gpq_agent.node.devices import yield_files
from gpq_agent.node.doctor import errand_process, gpu_facts, gpu_report
from gpq_agent.node.doctor.errand_process import Fields, Place, run, tell
from gpq_agent.node.doctor.network_checks import all_reduce, listen, reach
from gpq_agent.node.host import network, procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import shim
from gpq_agent.node.spool import checkpoint_folder
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.spool.trees import Entry, Immovable

MARK = ".gpq-doctor-"
TORCH_LIMIT = 60.0  # seconds that importing torch may take

LOOK_AT_TORCH = """
import json, platform
found = {"python": platform.python_version()}
try:
    import torch
    found.update(torch=str(torch.__version__), cuda=str(torch.version.cuda or ""))
    found.update(gpus=torch.cuda.device_count())
    if found["gpus"]:
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    found["error"] = "{}: {}".format(type(error).__name__, error)
print("gpq:" + json.dumps(found))
"""

Message = Dict[str, Any]
LONGEST = 600.0  # seconds
MOST = 16  # at once
MOST_ANSWER = 1 << 20  # bytes
LIMITS = (
    ("nofile", resource.RLIMIT_NOFILE), ("memlock", resource.RLIMIT_MEMLOCK),
    ("nproc", resource.RLIMIT_NPROC),
)  # fmt: skip


def examine(place: Place, fields: Fields, pipe: int) -> None:
    """Report everything that the server itself shows. `python`: interpreter of scripts, "" for
    none. `env`: variables of the jobs."""
    interfaces = network.interfaces()
    # a shipped agent's is named by its SHA-256
    folder = os.path.basename(os.path.dirname(os.path.dirname(os.path.abspath(wire.__file__))))
    facts: Fields = {
        "time": time.time(),
        "host": socket.gethostname(),
        "boot": procs.boot_id(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "version": wire.VERSION,
        "agent": folder if re.fullmatch("[0-9a-f]{12,}", folder) else "",
        "disks": [_disk("spool", place.spool), _disk("checkpoints", place.checkpoints)],
        "limits": {
            name: place.limits.get(name, list(resource.getrlimit(number)))
            for name, number in LIMITS
        },
        "shm_mib": None,
        "interfaces": [interface._asdict() for interface in interfaces],
        "addresses": [interface.address for interface in network.candidates(interfaces)],
        "ephemeral": list(network.ephemeral_ports()),
        "infiniband": bool(glob.glob("/sys/class/infiniband/*")),
        "conda": shutil.which("conda") or "",
    }
    with contextlib.suppress(OSError):
        facts["shm_mib"] = shutil.disk_usage("/dev/shm").total >> 20
    if fields.get("python"):
        env = {**place.base, **fields.get("env", {}), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        facts["torch"] = run([str(fields["python"]), "-c", LOOK_AT_TORCH], env, TORCH_LIMIT)
    tell(pipe, facts)


def driver(_: Place, fields: Fields, pipe: int) -> None:
    """Report one look at the GPUs. NVML may hang, so it is a separate errand."""
    tell(pipe, gpu_facts.look())


def _disk(name: str, path: str) -> Fields:
    try:
        status = os.statvfs(path)
    except OSError as error:
        return {"what": name, "path": path, "error": error.strerror}
    return {
        "what": name,
        "path": path,
        "free_mib": status.f_bavail * status.f_frsize >> 20,
        # some file systems do not count them
        "inodes": status.f_favail if status.f_files else None,
        "filesystem": _filesystem(path),
    }


def _filesystem(path: str) -> str:
    best_mount, kind = "", "unknown"
    real_path = os.path.realpath(path)
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as stream:
        for line in stream:
            words = line.split(" ")
            mount = words[1].replace("\\040", " ")
            if os.path.commonpath([real_path, mount]) == mount and len(mount) >= len(best_mount):
                best_mount, kind = mount, words[2]
    return kind


# -- whose server is it? ---------------------------------------------------------------------------


def ask_back(place: Place, fields: Fields, pipe: int) -> None:
    """The user wants this server back for some seconds. Without seconds, no longer."""
    seconds, user = float(fields.get("seconds") or 0.0), wire.user_name(os.geteuid())
    if seconds > 0:
        tell(pipe, {"user": user, "seconds": yield_files.ask(place.common, seconds) - time.time()})
    else:
        tell(pipe, {"user": user, "wanted": yield_files.end(place.common)})


def files(place: Place, fields: Fields, pipe: int) -> None:
    """Report what must follow the job: `count` of entries, `age` (the newer of two sets has the
    larger one), and `stays`: why they cannot move, or ""."""
    entries: List[Entry] = []
    stays = ""
    try:
        entries = checkpoint_folder.listing(
            os.path.join(place.checkpoints, str(int(fields["job"])))
        )
    except Immovable as error:
        stays = str(error)
    age = list(checkpoint_folder.age(entries))
    tell(pipe, {"count": len(entries), "age": age, "stays": stays})


# -- is the folder of the checkpoints one that others have too? ------------------------------------


def mark(place: Place, fields: Fields, pipe: int) -> None:
    """Leave a mark."""
    os.close(os.open(_mark(place, str(fields["token"])), os.O_WRONLY | os.O_CREAT, 0o600))
    tell(pipe, {})


def report_marks(place: Place, fields: Fields, pipe: int) -> None:
    """Report which marks are there. Read the folder again, because a network file system may
    remember that there was none."""
    names = set(os.listdir(place.checkpoints))
    tell(pipe, {"seen": [token for token in fields["tokens"] if MARK + str(token) in names]})


def unmark(place: Place, fields: Fields, pipe: int) -> None:
    """Remove the mark."""
    os.unlink(_mark(place, str(fields["token"])))
    tell(pipe, {})


def _mark(place: Place, token: str) -> str:
    if not token.isalnum():
        raise ValueError("token")
    return os.path.join(place.checkpoints, MARK + token)


ERRANDS: Dict[str, Callable[[Place, Fields, int], None]] = {
    "examine": examine,
    "driver": driver,
    "listen": listen,
    "reach": reach,
    "all-reduce": all_reduce,
    "mark": mark,
    "seen": report_marks,
    "unmark": unmark,
    "yield": ask_back,
    "gpu": gpu_report.errand,
    "files": files,
}


class _Errand(NamedTuple):
    message: Message
    pipe: int
    heard: List[bytes]
    limit: float


class Errands:
    """The errands of one agent. `base` and `limits`: those of a login."""

    def __init__(
        self, place: Spool, base: Dict[str, str], common: str, limits: Dict[str, List[int]]
    ) -> None:
        self.place = errand_process.Place(place.path, place.checkpoints, base, common, limits)
        self._under_way: List[_Errand] = []

    @property
    def is_waited_for(self) -> bool:
        return bool(self._under_way)

    def begin(self, message: Message) -> None:
        """The answer comes with a later `ended`. Raises SpoolError and OSError."""
        errand = ERRANDS.get(str(message.get("errand")))
        fields, limit = message.get("fields", {}), float(message.get("limit", 30.0))
        if errand is None or not isinstance(fields, dict) or not 0 < limit <= LONGEST:
            problem = "unknown errand {!r}".format(message.get("errand"))
            raise SpoolError(problem, "use one of {}".format(", ".join(ERRANDS)))
        if len(self._under_way) >= MOST:
            raise SpoolError("{} errands are running".format(MOST), "wait until one ends", "busy")
        read_end, write_end = os.pipe()

        def run() -> None:
            # Its process group has everything that the errand started.
            signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, limit)
            try:
                errand(self.place, fields, write_end)
            except Exception as error:
                errand_process.tell(
                    write_end, {"error": "{}: {}".format(type(error).__name__, error)}
                )

        try:
            shim.detach(self.place.spool, {write_end}, run)
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        self._under_way.append(_Errand(message, read_end, [], limit))

    def ended(self) -> List[Tuple[Message, Message]]:
        """(message, answer) of the errands that have reported since the last call."""
        over: List[Tuple[Message, Message]] = []
        for errand in list(self._under_way):
            try:
                while True:
                    chunk = os.read(errand.pipe, 1 << 16)
                    if not chunk:
                        break
                    errand.heard.append(chunk)
            except BlockingIOError:
                continue
            self._under_way.remove(errand)
            os.close(errand.pipe)
            answer: Message = {"error": "no answer within {:g} s".format(errand.limit)}
            content = b"".join(errand.heard)
            if len(content) > MOST_ANSWER:
                answer = {"error": "its answer has more than {} MiB".format(MOST_ANSWER >> 20)}
                content = b""
            with contextlib.suppress(ValueError):
                answer = wire.decode(content)
            over.append((errand.message, {"answer": answer}))
        return over


def main() -> None:
    """Run the errand that the first argument names on this machine, without an agent. stdin has
    `spool`, `checkpoints` and `fields`, and stdout gets the answer."""
    order = json.loads(sys.stdin.read())
    ERRANDS[sys.argv[1]](Place(order["spool"], order["checkpoints"], {}), order["fields"], 1)


if __name__ == "__main__":
    main()
