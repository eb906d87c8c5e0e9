"""Files of one attempt: <spool>/attempts/<job>.<attempt>/."""

from typing import Tuple

# what to start: a StartOrder, which the agent writes before it spawns anything
ORDER = "order.json"
# identity of the shim: {"pid", "start_time", "boot_id"}, the first file that the shim writes
SHIM = "shim.json"
# identity of the job's first process, fsynced before the process gets its go byte
STARTED = "started.json"
# {"mode": "checkpoint" | "signal" | "kill", "grace": seconds, "seq": n}. SIGUSR1 wakes the shim
STOP = "stop.json"
EXIT = "exit.json"  # an ExitRecord, written only when no process of the tree is left
LOG = "log"  # what the job printed (stdout and stderr joined), append-only
CONTROL = "control.json"  # a Control: the newest order to the training process
REPORT = "report.jsonl"  # lines from the training process: see REPORT_KINDS
# followed by the number of a rank on this server. Its training process maps it, see Pulse
RANK = "rank."
PULSE = "=qqqd"  # pid, optimizer steps done, index into PHASES, CLOCK_BOOTTIME of the latest step
# "arrived": it waits for the others, and its own gradients are ready or it is between two steps
PHASES = ("starting", "computing", "arrived", "evaluating", "saving", "ended")
# {"kind", "note"}: why the user's program did not start, see Meetings in wire.py
UNLAUNCHED = "unlaunched.json"
# {"note"}: gpq's own choice did not fit, so the job did not fail
EXCUSED = "excused.json"
# What ended the first replica of this server that an exception ended: {"rank", "error", "gpu": the
# GPU that it could not use, or ""}
FIRST_ERROR = "error.json"
# {"failures": [[rank, exit code, negative for a signal], ...]} in the order in which they ended
FAILURES = "failures.json"
# {"variable"}: what a script changes before `gpq.init`, so a standby cannot run it
COLD = "cold.json"
# {"rank"}: the first replica of this server that ended by itself before its training was over
DEPARTED = "departed.json"
# the training process writes it when its checkpoint is durable, just before it exits on request
STOPPED = "stopped.json"
# {"step", "time"} by the training process: training is over, so exit code 0 means completed
FINISHED = "finished.json"


def attempt_key(job: int, attempt: int) -> str:
    """``42.1``: the name of an attempt on the wire and in the spool."""
    return "{}.{}".format(job, attempt)


def parse_attempt_key(key: str) -> Tuple[int, int]:
    """(job, attempt) of ``42.1``. Raises ValueError."""
    job, attempt = key.split(".")
    return int(job), int(attempt)
