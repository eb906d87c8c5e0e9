"""Files of one attempt: <spool>/attempts/<job>.<attempt>/, once forgotten in <spool>/ended.
Variables of its processes, and exit codes that have a meaning for gpq."""

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
# where each stream of the log begins, and the socket of the console (node/console)
STREAMS, CONSOLE = "log.streams", "console.sock"
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

ENV_JOB = "GPQ_JOB_ID"
ENV_ATTEMPT = "GPQ_ATTEMPT"  # "<attempt number>"
# "<spool id>:<job>.<attempt>". Every process of the tree inherits it, so that gpq finds escapees
ENV_MARK = "GPQ_MARK"
# The mark of an interpreter that waits for an attempt. It leaves room for the mark of that attempt
STANDBY_MARK = "standby:" + "-" * 128
AUDIT_INIT = "gpq.init"  # the audit event of Python with which `gpq.init` begins
ENV_RUN_DIR = "GPQ_RUN_DIR"  # the attempt's directory
# in it, where the replicas meet if all are on this server: the beginning of the names of files
ENV_MEETING = "GPQ_MEETING"
ENV_CHECKPOINT_DIR = "GPQ_CHECKPOINT_DIR"  # the job's own directory, the same for all its attempts
ENV_RESUME = "GPQ_RESUME"  # "1" from the second attempt on
ENV_DONE_FILE = "GPQ_DONE_FILE"  # the order's `done_file`, absolute
ENV_CORES = "GPQ_CORES"  # cores by local rank: "0,1;2,3" (CPU slots only)
# a JSON object: variables that gpq chose for this server. Submissions from within the job ignore
# them
ENV_DEFAULTS = "GPQ_DEFAULTS"
ENV_LEAST_GPUS = "GPQ_LEAST_GPUS"  # the smallest number of GPUs that a script asked for
ENV_DEVICES = "GPQ_DEVICES"  # device ids of this server, comma-separated
# what a script wrote and removed, in the folder of a shape that gpq checks
CHECK_FILES = "files"
CHECK_WRITTEN = "written"  # in it: what a script wrote, by its whole path
SIDE_EFFECT = (
    "side_effect"  # in a report: a notice about what a script does outside of its training
)
# PYTHONHASHSEED of every process of a job, so that sets keep their order over restarts
HASH_SEED = "0"
# codes of habits that the user accepts, comma-separated
ENV_ACCEPTED = "GPQ_ACCEPTED"
ENV_PROOF = "GPQ_PROOF"  # a Proof as a JSON object
ENV_TRIAL = "GPQ_TRIAL"  # "1" for what `gpq doctor` runs on GPUs that it has locked
# a CheckOrder as a JSON object: this process runs for `gpq check`
ENV_CHECK = "GPQ_CHECK"

# Exit codes of jobs that saved a checkpoint on a signal.
EXIT_PREEMPTED = (75, 143)


def attempt_key(job: int, attempt: int) -> str:
    """``42.1``: the name of an attempt on the wire and in the spool."""
    return "{}.{}".format(job, attempt)


def parse_attempt_key(key: str) -> Tuple[int, int]:
    """(job, attempt) of ``42.1``. Raises ValueError."""
    job, attempt = key.split(".")
    return int(job), int(attempt)
