"""What `gpq doctor` has a server look at, measure and try. Each function here is the work of one
process (`errands`), told by one JSON object. Changes nothing but a mark in the folder of the
checkpoints, which `unmark` removes."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from gpq_agent import wire
from gpq_agent.node.devices import gpu_locks, gpus, yield_files
from gpq_agent.node.host import network, procs, user_names

Fields = Dict[str, Any]
TORCH_LIMIT = 60.0  # seconds that importing torch may take
TRY_LIMIT = 3.0  # of one connection
FIRST_PORT, LAST_PORT = 20000, 32700  # where gpq's master ports are
LAST_LINE = 300
MARK = ".gpq-doctor-"

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

# Both ranks time the same sizes: what rank 0 measured decides, and is given to rank 1 by an
# all-reduce.
ALL_REDUCE = """
import datetime, json, statistics, sys, time
import torch
import torch.distributed as dist
backend = sys.argv[1]
device = "cuda:0" if backend == "nccl" else "cpu"
torch.set_num_threads(1)
dist.init_process_group(backend, timeout=datetime.timedelta(seconds=30))
def timed(numbers, times):
    data = torch.zeros(numbers, device=device)
    taken = []
    for _ in range(times):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(data)
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)
def agreed(value):
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared[0])
timed(1, 3)
latency = agreed(timed(1, 21))
numbers = 1 << 18
taken = agreed(timed(numbers, 2))
while taken < 0.15 and numbers < 1 << 24:
    numbers *= 4
    taken = agreed(timed(numbers, 2))
taken = agreed(timed(numbers, 3 if taken < 3 else 1))
size = 4 * numbers
print("gpq:" + json.dumps({"latency": latency, "bandwidth": size / taken, "bytes": size}))
dist.destroy_process_group()
"""


class Place(NamedTuple):
    """Where the agent is."""

    spool: str
    checkpoints: str
    base: Dict[str, str]  # the environment of a login, which all jobs have
    common: str = ""  # the folder of this server that everybody's gpq uses
    limits: Dict[str, List[int]] = {}  # of a login, as in wire.Attributes


def tell(pipe: int, answer: Fields) -> None:
    """The one thing that an errand tells; its process may go on."""
    data = wire.encode(answer)
    while data:
        data = data[os.write(pipe, data) :]
    os.close(pipe)


def examine(place: Place, fields: Fields, pipe: int) -> None:
    """Everything that can be seen from here alone. `python`: interpreter of scripts, "" for none;
    `env`: of the jobs."""
    known = network.interfaces()
    found: Fields = {
        "time": time.time(),
        "host": socket.gethostname(),
        "boot": procs.boot_id(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "version": wire.VERSION,
        "agent": _agent_name(),
        "disks": [_disk("spool", place.spool), _disk("checkpoints", place.checkpoints)],
        "limits": {
            name: place.limits.get(name, list(resource.getrlimit(number)))
            for name, number in _LIMITS
        },
        "shm_mib": _size_mib("/dev/shm"),
        "interfaces": [one._asdict() for one in known],
        "addresses": [one.address for one in network.candidates(known)],
        "ephemeral": list(network.ephemeral_ports()),
        "infiniband": (
            os.path.isdir("/sys/class/infiniband") and bool(os.listdir("/sys/class/infiniband"))
        ),
        "conda": shutil.which("conda") or "",
    }
    if fields.get("python"):
        env = {**place.base, **fields.get("env", {}), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        found["torch"] = run([str(fields["python"]), "-c", LOOK_AT_TORCH], env, TORCH_LIMIT)
    tell(pipe, found)


_LIMITS = (
    ("nofile", resource.RLIMIT_NOFILE),
    ("memlock", resource.RLIMIT_MEMLOCK),
    ("nproc", resource.RLIMIT_NPROC),
)


def driver(_: Place, fields: Fields, pipe: int) -> None:
    """NVML, which may hang: hence an errand of its own."""
    begin = time.monotonic()
    found = gpus.probe(gpus.binding())
    notice = found.described(time.monotonic() - begin)
    tell(pipe, {"driver": found.driver, "error": found.error, "notice": notice})


def _agent_name() -> str:
    """The SHA-256 that a shipped agent's folder is named by, "" where it was installed with gpq."""
    name = os.path.basename(os.path.dirname(os.path.dirname(os.path.abspath(wire.__file__))))
    return name if len(name) >= 12 and all(sign in "0123456789abcdef" for sign in name) else ""


def _disk(what: str, path: str) -> Fields:
    try:
        found = os.statvfs(path)
    except OSError as error:
        return {"what": what, "path": path, "error": error.strerror}
    return {
        "what": what,
        "path": path,
        "free_mib": found.f_bavail * found.f_frsize >> 20,
        "inodes": found.f_favail if found.f_files else None,  # some file systems count none
        "filesystem": _filesystem(path),
    }


def _filesystem(path: str) -> str:
    best, kind = "", "unknown"
    real = os.path.realpath(path)
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as stream:
        for line in stream:
            words = line.split(" ")
            mount = words[1].replace("\\040", " ")
            if os.path.commonpath([real, mount]) == mount and len(mount) >= len(best):
                best, kind = mount, words[2]
    return kind


def _size_mib(path: str) -> Optional[int]:
    try:
        return shutil.disk_usage(path).total >> 20
    except OSError:
        return None


# -- between servers -------------------------------------------------------------------------------


def listen(_: Place, fields: Fields, pipe: int) -> None:
    """Listen on a port of each range that jobs use, tell which, and say `token` to whoever connects
    until time is up."""
    token = str(fields["token"]).encode("ascii")
    sockets = [_listener(0), _listener_between(FIRST_PORT, LAST_PORT)]
    tell(pipe, {"ports": [each.getsockname()[1] for each in sockets]})

    def serve(listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(token)

    threads = [threading.Thread(target=serve, args=(each,), daemon=True) for each in sockets]
    for thread in threads:
        thread.start()
    time.sleep(float(fields.get("seconds", 30.0)))


def _listener(port: int) -> socket.socket:
    family = (
        socket.AF_INET6
        if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6")
        else socket.AF_INET
    )
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("", port))
        found.listen(64)
    except OSError:
        found.close()
        raise
    return found


def _listener_between(first: int, last: int) -> socket.socket:
    for attempt in range(200):
        try:
            return _listener(first + (os.getpid() * 31 + attempt * 61) % (last - first))
        except OSError:
            continue
    raise OSError("no port from {} to {} is free".format(first, last))


def reach(_: Place, fields: Fields, pipe: int) -> None:
    """Why each target cannot be reached: "" where it can, and says its token."""
    targets: List[Fields] = list(fields["targets"])
    problems = [""] * len(targets)

    def try_one(number: int) -> None:
        problems[number] = _problem(targets[number])

    threads = [
        threading.Thread(target=try_one, args=(number,), daemon=True)
        for number in range(len(targets))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell(pipe, {"problems": problems})


def _problem(target: Fields) -> str:
    """As network.reachable, and that it is the server that was meant who answers."""
    wanted = str(target["token"]).encode("ascii")
    try:
        with socket.create_connection(
            (str(target["address"]), int(target["port"])), TRY_LIMIT
        ) as connection:
            said = connection.recv(len(wanted))
    except socket.timeout:
        return "no answer within {:g} s".format(TRY_LIMIT)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "" if said == wanted else "another machine answers there"


def all_reduce(place: Place, fields: Fields, pipe: int) -> None:
    """One of two ranks: latency in seconds, bandwidth in bytes a second. `peer`: an address of the
    other server; `device`: a GPU, whose lock is held meanwhile, so that no gpq begins something
    there. Raises SpoolError where it is taken."""
    device = str(fields.get("device", ""))
    held = gpu_locks.Locks(place.common).take([device], 0, 0) if device else []
    interface = network.interface_of(
        network.local_address(str(fields["peer"])), network.interfaces()
    )
    env = {
        **place.base,
        **fields.get("env", {}),
        "MASTER_ADDR": str(fields["address"]),
        "MASTER_PORT": str(fields["port"]),
        "RANK": str(fields["rank"]),
        "WORLD_SIZE": "2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": device,
        wire.ENV_TRIAL: "1",
        "OMP_NUM_THREADS": "1",
    }
    if interface:
        env.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
    command = [str(fields["python"]), "-c", ALL_REDUCE, str(fields.get("backend", "gloo"))]
    try:
        answer = run(command, env, float(fields.get("seconds", 60.0)))
    finally:
        gpu_locks.close(held)
    tell(pipe, dict(answer, interface=interface))


def run(command: List[str], env: Dict[str, str], limit: float) -> Fields:
    """What a program told in its line that begins with `gpq:`; else an error with its last line."""
    try:
        done = subprocess.run(
            command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": "{} did not answer within {:g} s".format(command[0], limit)}
    except OSError as error:
        return {"error": "{} cannot be run: {}".format(command[0], error.strerror)}
    for line in reversed(done.stdout.decode("utf-8", "replace").splitlines()):
        if line.startswith("gpq:"):
            answer: Fields = json.loads(line[4:])
            return answer
    lines = [
        line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()
    ]
    return {
        "error": "exit {}: {}".format(
            done.returncode, lines[-1][:LAST_LINE] if lines else "it said nothing"
        )
    }


# -- is the folder of the checkpoints one that others have too? ------------------------------------


def mark(place: Place, fields: Fields, pipe: int) -> None:
    """Leave a mark."""
    os.close(os.open(_mark(place, str(fields["token"])), os.O_WRONLY | os.O_CREAT, 0o600))
    tell(pipe, {})


def seen(place: Place, fields: Fields, pipe: int) -> None:
    """Which marks are there. The folder is read anew: a network file system may remember that there
    was none."""
    there = set(os.listdir(place.checkpoints))
    tell(pipe, {"seen": [token for token in fields["tokens"] if MARK + str(token) in there]})


def unmark(place: Place, fields: Fields, pipe: int) -> None:
    """Remove the mark."""
    os.unlink(_mark(place, str(fields["token"])))
    tell(pipe, {})


def _mark(place: Place, token: str) -> str:
    if not token.isalnum():
        raise ValueError("token")
    return os.path.join(place.checkpoints, MARK + token)


# -- whose server is it? ---------------------------------------------------------------------------


def ask_back(place: Place, fields: Fields, pipe: int) -> None:
    """The user wants this server back for some seconds, or, without any, no more."""
    seconds, user = float(fields.get("seconds") or 0.0), user_names.user_name(os.geteuid())
    if seconds > 0:
        tell(pipe, {"user": user, "seconds": yield_files.ask(place.common, seconds) - time.time()})
    else:
        tell(pipe, {"user": user, "wanted": yield_files.end(place.common)})


ERRANDS: Dict[str, Callable[[Place, Fields, int], None]] = {
    "examine": examine,
    "driver": driver,
    "listen": listen,
    "reach": reach,
    "all-reduce": all_reduce,
    "mark": mark,
    "seen": seen,
    "unmark": unmark,
    "yield": ask_back,
}
