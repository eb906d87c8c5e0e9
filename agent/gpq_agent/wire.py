"""The messages between the daemon, the agent, the shim and the training process. Each is one line
with one JSON object, and the format has a version.

gpq, `gpq_agent.node` and `gpq_agent.train` share this module and nothing else. The definitions are
in `gpq_agent/messages`, by topic. Standard library only, Python >= 3.8.

This module defines four conversations:

1. daemon <-> agent, over one byte pipe (stdin/stdout of `python -m gpq_agent.node`). Every line
   from the daemon is a request ``{"v", "id", "op", ...}``. Every line back is its reply:
   ``{"v", "id", "ok": true, ...}`` or ``{"v", "id", "ok": false, "error", "hint", "kind"}``
   (`REFUSALS`). The agent never speaks first, except for one ``hello`` line.
2. agent <-> shim, through files in the attempt's directory (`ATTEMPT_FILES`). Each file is written
   completely or not at all (`write_json`: temporary file, fsync, rename). Only the two logs are
   append-only.
3. daemon <-> training process, through two files in the same directory. `control.json` carries
   orders down: it is numbered and replaced atomically. `report.jsonl` carries reports up: it is
   append-only, so a lost connection loses nothing.
4. `gpq run` <-> relay <-> console, in frames (messages/frames.py). The relay is a process of one
   connection on the server, and the console is the job's first process.

Time on the wire. Every reply to `hello` and `watch` is a report. Its `stamp` is the server's
CLOCK_BOOTTIME at that moment: seconds since boot, including sleep, which nobody can set. A stamp
has a meaning only on the server that made it, and only in that boot. The daemon sends it back, and
derives the ages of reported facts from it. No rule below reads a wall clock.

Start orders expire. `order.stamp` is the stamp of the last report that the daemon took in before it
sent the order, and `order.boot_id` is that report's boot. The agent refuses ("expired") an order of
another boot. It also refuses an order that arrives START_EXPIRY seconds or more after its stamp,
because the daemon may have replaced it by then.

Leases (`order.lease` > 0 seconds. With 0 the job runs without the daemon for as long as it likes).

a. The next `watch` of the same connection acknowledges a report: its `heard` is the report's stamp.
   The daemon sends `heard` only after two things. (1) It noted the moment `taken in` on its own
   CLOCK_BOOTTIME. (2) After the report came, it found that the database still has this daemon's
   epoch. The start order itself acknowledges its `stamp`.
b. The agent keeps the highest acknowledged stamp of each store in `<spool>/lease.<store>.json`,
   unless its daemon's epoch is stale. The shim's lease ends at max(order.stamp, that stamp) +
   order.lease by CLOCK_BOOTTIME. Then the shim sends TERM to the whole tree, and KILL
   order.lease_margin / 3 seconds after that end (at once if it slept through both). It records the
   end with `fenced`. A lease that is renewed too late stays over: the shim does not take TERM back.
   If the shim is gone or hangs, a second process does the same within the rest of the margin
   (node/shim/shim.py).
c. The daemon gives up a part of an attempt lease + lease_margin seconds after it took in the
   server's last report, by its own CLOCK_BOOTTIME. A new daemon counts from its own start, because
   by a2 the one before it can acknowledge nothing that was made later. Once every part is over,
   given up or reported, the job is pending again under the next attempt number. The server's end =
   acknowledged stamp + lease + margin / 3 <= last report taken in + lease + margin = the daemon's
   patience. Nothing compares the clocks. Only their rates must agree, and messages may be late by
   any time.
d. News about a part that was given up changes only the journal, which records its end when the
   server reports it. If the part still lives, for example because its shim was killed, the daemon
   has it killed.

Environments. A `prepare` has only variables that lead to modules, and a `warm` only those of
READ_AT_START, because the job may never start there. `prepare` asks whether the server has what a
job needs, and runs the job's setup there once. It runs the setup again only if it failed, if its
result is gone, or under another name. (`environment` is a digest that the daemon makes and the
agent only compares.) `prepare` starts no part of a job and assigns no device. The spool keeps what
the setup exported. A start order that names the environment in `setup` starts with those exports.
An agent that does not know `prepare` refuses it like any unknown operation, and the daemon then
assumes that every environment fits there. A start order without `setup` and `environment` starts as
always.

Epochs. `hello` names the daemon's `store` (the id of its database) and `epoch` (which grows with
each start). The agent keeps the highest epoch of each store durably in
`<spool>/epoch.<store>.json`. It refuses ("stale") every request of an older daemon that changes or
renews anything. A start checks again under the spool's lock.

Meetings. If `order.masters` is not empty, the processes that the shims start meet before they
become the user's program (node/shim/rendezvous.py). The process of rank 0 listens on
`order.port`, and each other process tries the addresses. All take the first address that everyone
reaches, and each exports the interface that leads there. If they do not meet, UNLAUNCHED says why,
and nothing of the user's program has run. They talk in this encoding: {"number"} and back, then
lines {"text", "seal"}, sealed with `order.secret`. Their texts are {} and back, then {"node",
"reached", "port"} from each, and {"address"} or {"error"} to each. The replicas of an attempt on
one server meet in a file instead (ENV_MEETING).

Ends. Exit code 0 after a stop order proves nothing. Programs that save on a signal often end with
0, and so does a program that finishes at that very moment. The shim tells them apart (`finished`,
`evidence`, see node/shim/completion_evidence.py) by what appeared during this attempt: FINISHED,
the done file of the order, or a checkpoint that was written at the last step. A record of an older
agent lacks these fields and proves nothing. Such an attempt runs again, which repeats its tail and
loses nothing.

Pulses. Each training process writes its step and phase into a mapped file (RANK, PULSE), and the
agent reports them in `watch` (`AttemptInfo.ranks`). They are not reports: nobody keeps them, and a
daemon that does not know them misses nothing.
"""

import contextlib
import json
import os
import time
from typing import Any, Dict

from gpq_agent import records
from gpq_agent.folders import *  # noqa: F403
from gpq_agent.messages.attempt_files import *  # noqa: F403
from gpq_agent.messages.checks import *  # noqa: F403
from gpq_agent.messages.frames import *  # noqa: F403
from gpq_agent.messages.orders import *  # noqa: F403
from gpq_agent.messages.reports import *  # noqa: F403

VERSION = 1
# Variables, by how their names begin, that torch and the libraries below it read while they are
# imported, and with those that a new interpreter reads. A standby has no other ones of its job.
READ_AT_IMPORT = (
    "ATEN_", "BLIS_", "DNNL_", "GOMP_", "GOTO_", "KMP_", "MKL_", "NPY_", "NUMEXPR_", "OMP_",
    "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "VECLIB_",
)  # fmt: skip
READ_AT_START = (
    *READ_AT_IMPORT, "CONDA_", "CUBLAS", "CUDA_", "CUDNN_", "GLIBC_", "GLOO_", "HOME", "LANG",
    "LC_", "LD_", "LOGNAME", "MALLOC_", "NCCL_", "NVIDIA_", "PATH", "PYTHON", "SHELL", "TMPDIR",
    "TRITON_", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME",
)  # fmt: skip
START_EXPIRY = 20.0  # seconds from the stamp of a start order until the agent refuses it

decode = records.parse  # the object on one line
read_json = records.read_object
misfits = records.misfits
excess = records.excess
LENGTHS = records.LENGTHS


def encode(message: Dict[str, Any]) -> bytes:
    """Return one line of UTF-8 JSON, newline included."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("utf-8") + b"\n"


def write_json(path: str, content: Dict[str, Any]) -> None:
    """Replace `path` completely or not at all, and durably: temporary file, fsync, rename, fsync of
    the folder."""
    temporary = "{}.{}.{}.tmp".format(path, os.getpid(), time.monotonic_ns())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(encode(content))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync(os.path.dirname(path) or ".")


def sync(path: str) -> None:
    """Make the content of a file durable, or the names in a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
