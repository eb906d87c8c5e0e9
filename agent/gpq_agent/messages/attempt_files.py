"""Files of one attempt: <spool>/attempts/<job>.<attempt>/."""

from typing import Tuple

ORDER = "order.json"  # what to start: a StartOrder; written by the agent before anything is spawned
# identity of the shim: {"pid", "start_time", "boot_id"}; written by the shim first of all
SHIM = "shim.json"
STARTED = "started.json"  # identity of the job's first process; fsynced before it gets its go byte
# {"mode": "checkpoint" | "signal" | "kill", "grace": seconds, "seq": n}; the shim is woken by
# SIGUSR1
STOP = "stop.json"
EXIT = "exit.json"  # an ExitRecord; written only when no process of the tree is left
LOG = "log"  # what the job printed (stdout and stderr joined), append-only
CONTROL = "control.json"  # a Control: the newest order to the training process
REPORT = "report.jsonl"  # lines from the training process: see REPORT_KINDS
# and the number of a rank of this node: a PULSE, mapped by its training process, see Pulse
RANK = "rank."
PULSE = "=qqqd"  # pid, optimizer steps done, index into PHASES, CLOCK_BOOTTIME of the latest step
# "arrived": its own gradients are ready, or it is between two steps, and it waits for the others.
PHASES = ("starting", "computing", "arrived", "evaluating", "saving", "ended")
# {"kind", "note"}: why the user's program was not begun; see Meetings in wire.py
UNLAUNCHED = "unlaunched.json"
# {"note"}: what gpq chose did not fit, so the end is not the job's failure
EXCUSED = "excused.json"
# What ended the first replica of this node that an exception has ended: {"rank", "error", "gpu":
# that could not be used, or ""}
FIRST_ERROR = "error.json"
# {"rank"}: of the first replica of this node that ended by itself before its training was over
DEPARTED = "departed.json"
# written by the training process once its checkpoint is durable, just before it exits on request
STOPPED = "stopped.json"
# by the training process: {"step", "time"}: training is over, and an exit with 0 is its end
FINISHED = "finished.json"


def attempt_key(job: int, attempt: int) -> str:
    """``42.1``: the name of an attempt on the wire and in the spool."""
    return "{}.{}".format(job, attempt)


def parse_attempt_key(key: str) -> Tuple[int, int]:
    """(job, attempt) of ``42.1``. Raises ValueError."""
    job, attempt = key.split(".")
    return int(job), int(attempt)
