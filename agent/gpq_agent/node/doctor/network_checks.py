"""What `gpq doctor` tries between servers: which servers reach each other, and how fast an
all-reduce is. Each function runs in its own process."""

import contextlib
import os
import socket
import threading
import time
from typing import List

from gpq_agent import wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.doctor.errand_process import TRY_LIMIT, Fields, Place, run, tell
from gpq_agent.node.host import network

FIRST_PORT, LAST_PORT = 20000, 32700  # where gpq's master ports are

# Both ranks time the same sizes: rank 0's measurement decides, and an all-reduce sends it to rank
# 1.
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


# -- between servers -------------------------------------------------------------------------------


def listen(_: Place, fields: Fields, pipe: int) -> None:
    """Listen on a port of each range that jobs use, report the ports, and send `token` to everyone
    who connects until time is up."""
    token = str(fields["token"]).encode("ascii")
    sockets = [network.listener(0), _listener_of_masters()]
    tell(pipe, {"ports": [server.getsockname()[1] for server in sockets]})

    def serve(listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(token)

    threads = [threading.Thread(target=serve, args=(server,), daemon=True) for server in sockets]
    for thread in threads:
        thread.start()
    time.sleep(float(fields.get("seconds", 30.0)))


def _listener_of_masters() -> socket.socket:
    for attempt in range(200):
        place = (os.getpid() * 31 + attempt * 61) % (LAST_PORT - FIRST_PORT)
        with contextlib.suppress(OSError):
            return network.listener(FIRST_PORT + place)
    raise OSError("no port from {} to {} is free".format(FIRST_PORT, LAST_PORT))


def reach(_: Place, fields: Fields, pipe: int) -> None:
    """Why each target is not reachable. "" if it is, and sends its token."""
    targets: List[Fields] = list(fields["targets"])
    from concurrent.futures import ThreadPoolExecutor  # the agent does not need it

    with ThreadPoolExecutor(len(targets) or 1) as pool:
        tell(pipe, {"problems": list(pool.map(_problem, targets))})


def _problem(target: Fields) -> str:
    """Like network.reachable, but the right server must answer."""
    token = str(target["token"]).encode("ascii")
    try:
        place = (str(target["address"]), int(target["port"]))
        with socket.create_connection(place, TRY_LIMIT) as connection:
            answer = connection.recv(len(token))
    except OSError as error:
        return network.failure_text(error, TRY_LIMIT)
    return "" if answer == token else "another machine answers there"


def all_reduce(place: Place, fields: Fields, pipe: int) -> None:
    """One of two ranks. Reports latency in seconds and bandwidth in bytes per second. `peer`: an
    address of the other server. `device`: a GPU. gpq holds its lock in the meantime, so that no job
    starts there. Raises SpoolError if it is taken."""
    device = str(fields.get("device", ""))
    locks = gpu_locks.Locks(place.common).take([device], 0, 0) if device else []
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
        gpu_locks.close(locks)
    tell(pipe, dict(answer, interface=interface))
