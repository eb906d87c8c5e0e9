"""What a script does outside of its training, which each restart and each replica would repeat.

wandb and MLflow go on in the run of the job, on rank 0. A file that a restart empties or that
several replicas write, and a folder that each attempt names anew, is told in one line. Audit hooks
of Python hear of them, of files that are emptied from the import of the library on. They do not
hear of what C code opens, as `torch.save` does.
"""

import contextlib
import hashlib
import os
import sys
import tempfile
import time
import uuid
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from gpq_agent import records, wire
from gpq_agent.train.checkpoints.script_checkpoints import ScriptCheckpoints
from gpq_agent.train.checkpoints.store import CheckpointStore
from gpq_agent.train.loop.runtime import Runtime
from gpq_agent.train.process.channels import Reporter

RECORD = os.path.join("gpq", "side-effects.json")  # in the job's folder
CLAIMS = "written"  # in the attempt's folder: a folder for each file that a replica writes
MOST_PATHS = 100
EMPTIES = os.O_CREAT | os.O_TRUNC
ELSEWHERE = ("/dev", "/proc", "/sys")
NO_RESULTS = ("__pycache__", "wandb")  # folders: wandb names one for each process
EACH_LOGS = {"WANDB_RUN_GROUP", "WANDB_SWEEP_ID"}  # set by those who want a run of each replica
ALONE = (
    "wandb logs on replica 0 alone. For a run of each replica, set WANDB_RUN_GROUP (gpq submit "
    "--env WANDB_RUN_GROUP=NAME)"
)
OTHER_RUN = (
    "{} writes another run than {} of an earlier attempt. Start the run after gpq.init(), or keep "
    "its id with job.state()"
)
SEVERAL_RUNS = "{} writes a run on several replicas. Start the run only if job.rank == 0"
EMPTIED = (
    '{} is emptied, and with it what an earlier attempt wrote. Open it with "a" if job.resumed, or '
    "keep what it holds with job.state()"
)
SEVERAL_WRITE = "several replicas write {}. Write it only if job.rank == 0, or one file for each"
OTHER_FOLDER = (
    "each attempt makes a folder of its own, as {}. Name it by GPQ_JOB_ID, which is the same in "
    "all attempts"
)


class JobRecord(NamedTuple):
    """What all attempts of a job know. `run`: its id for wandb. `began`: when the first attempt
    began to train, in seconds since 1970, or 0. `folders`: those that it had made by then. `runs`:
    the ids of those that libraries wrote."""

    run: str
    began: float = 0.0
    folders: List[str] = []
    runs: Dict[str, str] = {}


class SideEffects:
    """One per process, from `gpq.init()` on. Without gpq it does nothing. `store`: without a
    checkpoint in it or of the script's own the job begins anew, and may empty its files."""

    def __init__(self, runtime: Runtime, store: Optional[CheckpointStore]) -> None:
        environment, self._runtime = runtime.environment, runtime
        self._paths: Set[str] = set()
        self._folders: List[str] = []
        run_dir, checkpoint_dir = environment.run_dir, environment.checkpoint_dir
        self.before_training = bool(run_dir and checkpoint_dir)
        if not run_dir or not checkpoint_dir or store is None:
            return
        self._goes_on = bool(store.names() or ScriptCheckpoints(checkpoint_dir).resume_path)
        self._claims, self._pid = os.path.join(run_dir, CLAIMS), os.getpid()
        self._here, self._temporary = os.path.join(os.getcwd(), ""), tempfile.gettempdir() + os.sep
        own = (run_dir, checkpoint_dir, *ELSEWHERE)
        self._own = tuple(os.path.join(os.path.abspath(folder), "") for folder in own)
        # Where `gpq check` sends what the script writes.
        folder = os.path.realpath(runtime.recorder.order.folder) if runtime.recorder else "/"
        self._redirected = os.path.join(folder, wire.CHECK_FILES, wire.CHECK_WRITTEN)
        # Only the replicas on the server of rank 0 share its report.
        is_beside_lead = environment.rank == environment.local_rank
        self._report = Reporter(
            os.path.join(run_dir, wire.REPORT) if is_beside_lead else "", runtime.environ
        )
        self._record_path = os.path.join(checkpoint_dir, RECORD)
        # A new record if there is none, or a damaged one.
        name = "gpq-{}-{}".format(runtime.environ.get(wire.ENV_JOB, "0"), uuid.uuid4().hex[:8])
        self._record = JobRecord(name)
        with contextlib.suppress(OSError, records.Damaged):
            content = records.read_shape(JobRecord, self._record_path) or {}
            saved = {field: content[field] for field in JobRecord._fields if field in content}
            self._record = self._record._replace(**saved)
        self._go_on()
        self._listen()
        for path, size, written_at in _early_files:
            with contextlib.suppress(Exception):
                self._opens(path, size=size, written_at=written_at)
        _early_files.clear()

    def begin(self) -> None:
        """Training is about to begin."""
        self.before_training = False
        record = self._record
        runs: Dict[str, str] = {}  # ids of the runs that libraries write, by library
        wandb: Any = sys.modules.get("wandb")
        mlflow: Any = sys.modules.get("mlflow")
        with contextlib.suppress(Exception):  # of another version. Training does not depend on it
            if not wandb.run.disabled:
                runs["wandb"] = str(wandb.run.id)
        with contextlib.suppress(Exception):
            run = mlflow.active_run()
            # The first run that a script starts is the outer one.
            runs["mlflow"] = str(run.data.tags.get("mlflow.parentRunId", run.info.run_id))
        each_logs = bool(EACH_LOGS & os.environ.keys())
        if not self._runtime.is_lead:
            for library in () if each_logs else runs:
                self._tell(SEVERAL_RUNS.format(library))
            return
        if self._runtime.replicas > 1 and not each_logs and "wandb" in sys.modules:
            self._runtime.notice(ALONE)
        for library, run in runs.items():
            if record.runs.get(library, run) != run:
                self._tell(OTHER_RUN.format(library, record.runs[library]))
        began, folders = record.began or time.time(), record.folders or self._folders
        self._write(record._replace(began=began, folders=folders, runs={**runs, **record.runs}))

    # -- runs of tracking libraries ----------------------------------------------------------------

    def _go_on(self) -> None:
        """Let the libraries that the script calls from now on go on with the job's run. What the
        user has set stays."""
        environ, runs = os.environ, self._record.runs
        each_logs = bool(EACH_LOGS & environ.keys())
        if not self._runtime.is_lead:
            environ.update({} if each_logs else {"WANDB_MODE": "disabled"})
            return
        if not each_logs and not {"WANDB_RUN_ID", "WANDB_RESUME"} & environ.keys():
            environ.update(WANDB_RUN_ID=self._record.run, WANDB_RESUME="allow")
        if "mlflow" in runs:
            environ.setdefault("MLFLOW_RUN_ID", runs["mlflow"])
        self._write(self._record)

    def _write(self, record: JobRecord) -> None:
        with contextlib.suppress(OSError):
            wire.write_json(self._record_path, record._asdict())

    # -- files and folders -------------------------------------------------------------------------

    def _listen(self) -> None:
        """From now on Python calls `hear` before what it does, on any thread. A function costs each
        event half of what a method does."""

        def hear(event: str, args: Tuple[Any, ...]) -> None:
            # Without O_CREAT a file is open to be read, or to be changed in place.
            if event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT:
                with contextlib.suppress(Exception):  # it would end what the script does
                    self._opens(args[0], *_content(args[0], args[2]))
            elif event == "os.mkdir" and self.before_training:
                with contextlib.suppress(Exception):
                    self._makes_folder(args[0])

        sys.addaudithook(hear)

    def _opens(self, path: Any, size: int, written_at: float) -> None:
        """A file is opened to be written. `size` and `written_at`: what it holds if that empties
        it."""
        name = self._name(path)
        if not name or name in self._paths or len(self._paths) >= MOST_PATHS:
            return
        self._paths.add(name)
        try:
            if self._runtime.replicas > 1:
                os.makedirs(self._claims, exist_ok=True)
                claim = hashlib.sha256(os.fsencode(name)).hexdigest()
                os.mkdir(os.path.join(self._claims, claim))
        except FileExistsError:
            self._tell(SEVERAL_WRITE.format(name))
            return
        # Those that are emptied later are saves, which replace the save before.
        is_lost = size > 0 and 0 < self._record.began < written_at
        if is_lost and self.before_training and self._goes_on:
            self._tell(EMPTIED.format(name))

    def _makes_folder(self, path: Any) -> None:
        name = self._name(path)
        if not name or os.path.lexists(path) or len(self._folders) >= MOST_PATHS:
            return
        parent = os.path.dirname(name)
        earlier = [folder for folder in self._record.folders if os.path.dirname(folder) == parent]
        if earlier and name not in earlier and self._goes_on and self._runtime.is_lead:
            self._tell(OTHER_FOLDER.format(earlier[-1]))
        self._folders.append(name)

    def _name(self, path: Any) -> str:
        """How to name the script's result at `path`: below its folder, or absolute. "" if it is
        none: temporary, hidden, a lock, gpq's own, or of a process that the script started."""
        whole = os.path.abspath(os.fsdecode(path))  # raises for a descriptor
        if whole.startswith(self._redirected):
            whole = whole[len(self._redirected) :]
        is_near = whole.startswith(self._here)
        name = whole[len(self._here) :] if is_near else whole
        parts = name.split(os.sep)
        is_no_result = (
            os.getpid() != self._pid
            or whole.startswith(self._own)
            or (whole.startswith(self._temporary) and not is_near)
            or any(part.startswith(".") or part in NO_RESULTS for part in parts)
            or name.endswith(".lock")
        )
        return "" if is_no_result else name

    def _tell(self, message: str) -> None:
        """A line for the user, from any replica."""
        sys.stderr.write("gpq: {}\n".format(message))
        self._report.send("notice", {"message": message, wire.SIDE_EFFECT: True})


_early_files: List[Tuple[str, int, float]] = []  # path, size, time of the last write


def hear_early() -> None:
    """From the import of the library until `gpq.init()`, note which files the script empties."""

    def hear(event: str, args: Tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[2], int) and args[2] & EMPTIES == EMPTIES:
            with contextlib.suppress(Exception):
                if wire.ENV_RUN_DIR in os.environ and len(_early_files) < MOST_PATHS:
                    _early_files.append((os.path.abspath(args[0]), *_content(*args[::2])))

    sys.addaudithook(hear)


def _content(path: Any, flags: int) -> Tuple[int, float]:
    """Size, and time of the last write, of a file that is about to be opened and emptied."""
    try:
        status = os.stat(path) if flags & os.O_TRUNC else None
    except OSError:
        status = None
    return (status.st_size, status.st_mtime) if status is not None else (0, 0.0)
