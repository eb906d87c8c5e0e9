"""The shim's watch over one attempt: wait, obey stops (each only harder than the last), empty the
tree, record the end."""

import os
import signal
import time
from typing import Any, Dict, Optional, Sequence

from gpq_agent import wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.host import cgroups, procs
from gpq_agent.node.host.logs import Cap
from gpq_agent.node.shim import stops
from gpq_agent.node.shim.completion_evidence import CompletionEvidence
from gpq_agent.node.shim.exit_record import JobProcess, Notes, Verdict, verdict, write_exit
from gpq_agent.node.shim.leases import Lease, boottime
from gpq_agent.node.shim.process_tree import Tree, names, summary
from gpq_agent.node.spool import spool

TERM_GRACE = 5.0  # seconds between TERM and KILL if nobody asked for another time
LINGER = 2.0  # seconds for what ends by itself after the first process, such as `tee`
STUCK_AFTER = 10.0  # seconds of KILL without effect, after which the shim leaves a note
# seconds of KILL for single processes, after which the shim kills whole groups
GROUPS_AFTER = 0.5
FRESHEN = 3600.0  # seconds between two time stamps on the locks of its GPUs
# seconds between two looks at stop.json, in case its signal was lost with its sender
IDLE = 5.0
BUSY = 0.05
CALM = 0.25
WAKE = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM)


class Supervisor:
    """One attempt, from the go byte to exit.json.

    `first` is the job's first process. `parent`: it is our child, so we can collect its exit
    status. An adopting shim (the first one was killed) is not its parent and records an unknown
    exit code. `gpus`: the locks of its GPUs. The shim releases them when no process of the tree is
    left, before it reports the end. `witness`: finds evidence that the job was finished. An
    adopting shim has none, and without the exit code it would not need one.
    """

    def __init__(
        self,
        place: spool.Spool,
        order: wire.StartOrder,
        tree: Tree,
        first: Dict[str, Any],
        parent: bool,
        gpus: Sequence[int] = (),
        witness: Optional[CompletionEvidence] = None,
    ) -> None:
        self.spool = place
        self.order = order
        self.folder = place.folder(wire.attempt_key(order.job, order.attempt))
        self.tree = tree
        self.boot = procs.boot_id()
        self.process = JobProcess(first, parent, self.boot)
        self.signal = stops.JobSignal(order, tree, self.process.pid)
        self.stops = stops.Stops(self.folder)
        self.stage = "run"  # then asked, term, kill
        self.deadline = float("inf")
        self.terminated = False  # gpq sent TERM to the tree before the first process ended
        self.stage_since = 0.0  # of "term" and "kill"
        # what the first process leaves behind may end by itself, unless gpq waits for its end
        self.linger_until = float("inf")
        self.stuck_was_noted = False
        self.notes = Notes(self.folder)
        self.cap = Cap(os.path.join(self.folder, wire.LOG), order.log_limit)
        self.lease = Lease(place, order, self.boot)
        self.fenced = False
        self.memory = cgroups.Memory(self.process.pid)
        self.gpus = list(gpus)
        self.witness = witness
        self._freshened = time.monotonic()

    def run(self) -> None:
        """Returns when no process of the tree is left and the exit record is written."""
        is_over = False
        while not is_over:
            try:
                is_over = self._step()
            except OSError as error:
                # Without a free descriptor or memory to look with, nothing counts as gone.
                self.notes.add("its shim could not check it for a while: {}".format(error.strerror))
                time.sleep(BUSY)
            if not is_over:
                self._wait()
        gpu_locks.close(self.gpus)
        self._record()

    def _wait(self) -> None:
        if self.stage in ("run", "asked"):
            patience = IDLE if self.process.parent else BUSY
        else:
            # a look reads every process of the machine. Our own children wake us when they end
            patience = BUSY if time.monotonic() - self.stage_since < 1.0 else CALM
        patience = min(
            patience,
            self.lease.patience(),
            self.cap.patience(),
            max(0.0, min(self.deadline, self.linger_until) - time.monotonic()),
        )
        signal_info = signal.sigtimedwait(WAKE, patience)
        if signal_info is not None and signal_info.si_signo == signal.SIGTERM:
            self.notes.add("its shim got TERM, perhaps because the server was shutting down")
        if self.gpus and time.monotonic() - self._freshened > FRESHEN:
            self._freshened = time.monotonic()
            gpu_locks.keep_fresh(self.gpus)

    def _step(self) -> bool:
        """Look at everything once. True when all is over."""
        self.process.collect()
        if self.process.ended_at is None:
            self.memory.look()
        self._read_stop()
        self._cap_log()
        if not self.fenced and self.process.ended_at is None and self.lease.is_over():
            self._fence()
        if self._is_over():
            return True
        if self.signal.launchers and not self._saves():
            self.signal.release()
        if self._is_emptied():
            return True
        if time.monotonic() >= self.deadline:
            self._escalate()
        is_stuck = self.stage == "kill" and time.monotonic() > self.stage_since + STUCK_AFTER
        members = self.tree.members() if is_stuck and not self.stuck_was_noted else []
        if members:
            self.stuck_was_noted = True
            self.notes.tell("pid {} cannot be killed: the kernel holds it".format(names(members)))
        return False

    def _is_over(self) -> bool:
        """Has it ended and left nothing behind? What it left behind is ended, unless it still
        saves."""
        if self.process.ended_at is None or self.stage not in ("run", "asked"):
            return False
        if self._is_gone():
            return True
        if self.stage == "run" and self.linger_until == float("inf"):
            self.linger_until = time.monotonic() + LINGER
        elif not self._saves() and (self.stage == "asked" or time.monotonic() >= self.linger_until):
            self._note_leftovers()
            self._terminate(TERM_GRACE)
        return False

    def _note_leftovers(self) -> None:
        """Say what the first process left behind, and how to wait for it."""
        members = self.tree.members()
        if not members or self.stage == "asked":  # a stop is the end of all
            return
        line = "gpq ended {} that it had left running".format(summary(members))
        if self.process.code == 0:
            line += (
                ". For work that should finish, end the script with `wait` or run it in the"
                " foreground"
            )
        self.notes.add(line)

    def _is_emptied(self) -> bool:
        """Send TERM or KILL to every process that has not had it. Is none left?"""
        if self.stage not in ("term", "kill"):
            return False
        number = signal.SIGTERM if self.stage == "term" else signal.SIGKILL
        members = self.tree.signal_once(number)
        if not members and self.process.ended_at is not None and self._is_gone():
            return True
        if self.stage == "kill" and time.monotonic() > self.stage_since + GROUPS_AFTER:
            self.tree.signal_groups(signal.SIGKILL)
        return False

    # -- the end of processes

    def _is_gone(self) -> bool:
        """Is no process of the tree left? For a subreaper, having no child proves that there is no
        descendant."""
        self.process.collect()
        return self.process.childless and not self.tree.members()

    def _saves(self) -> bool:
        """Does a process live that was asked to save? The grace period is for it, even if a shell
        or a launcher above it has ended."""
        return self.stage == "asked" and self.signal.has_recipient()

    def _terminate(self, grace: float) -> None:
        if self.process.ended_at is None:
            self.terminated = True
        self.linger_until = float("inf")
        self.stage = "term"
        self.stage_since = time.monotonic()
        self.deadline = time.monotonic() + grace
        self.tree.signal_once(signal.SIGTERM)

    def _fence(self) -> None:
        """The daemon may have given this attempt up, so it must end within the margin, whatever
        else happens."""
        self.fenced = True
        self.notes.add(self.lease.note())
        grace = self.lease.until_kill()
        if self.stage in ("run", "asked"):
            self._terminate(grace)
        self.deadline = min(self.deadline, time.monotonic() + grace)

    def _escalate(self) -> None:
        if self.stage == "asked":
            seconds = time.monotonic() - self.stops.asked_at
            self.notes.add("ended {:.0f} s after it was asked to stop".format(seconds))
            self._terminate(TERM_GRACE)
        elif self.stage == "term":
            self.stage = "kill"
            self.deadline = float("inf")
            self.stage_since = time.monotonic()
            self.tree.signal_once(signal.SIGKILL)

    def _cap_log(self, at_once: bool = False) -> None:
        problem = self.cap.look(at_once)
        if problem:
            self.notes.tell(problem)

    # -- stops

    def _read_stop(self) -> None:
        reading = self.stops.read(has_ended=self.process.ended_at is not None)
        if reading is None:
            return
        stop, is_harder = reading
        limit = time.monotonic() + stop.grace
        if not is_harder or self.stage in ("term", "kill"):
            if self.stage != "kill":
                self.deadline = min(self.deadline, limit)
            return
        self.stops.asked_at = time.monotonic()
        if stop.mode == "kill":
            self._terminate(stop.grace)
            return
        self.stage = "asked"
        self.deadline = limit
        if stop.mode == "checkpoint":
            problem = stops.order_checkpoint(self.spool, self.order)
            if problem is not None:
                self.notes.add("could not write the order to checkpoint: " + problem)
        else:
            self.signal.send()

    # -- the record

    def _record(self) -> None:
        self._cap_log(at_once=True)
        code, killer = self.process.code, self.process.killer
        if not self.process.parent:
            self.notes.add("its shim was killed, so its exit code is unknown")
        oom = self._note_kill(code, killer)
        cause = verdict(self.folder, self.order, code) if code else Verdict()
        if cause.note:
            self.notes.add(cause.note)
        finished, evidence = self.stops.finished(code, self.witness)
        record = wire.ExitRecord(
            job=self.order.job,
            attempt=self.order.attempt,
            code=code,
            signal=killer,
            stopped=self._proves_stop(code, killer),
            asked=self.stops.mode,
            started_at=float(self.process.identity.get("started_at", 0.0)),
            ended_at=self.process.ended_at or time.time(),
            oom=oom,
            note="; ".join(self.notes.lines),
            fenced=self.fenced,
            unlaunched=cause.unlaunched,
            excused=cause.excused,
            cause=cause.cause,
            victim=cause.victim,
            stamp=boottime(),
            boot_id=self.boot,
            finished=finished,
            evidence=evidence,
        )
        write_exit(self.folder, record)

    def _note_kill(self, code: Optional[int], killer: Optional[int]) -> bool:
        """Add a note if somebody else killed the job or one of its processes. Did the kernel kill
        it because memory ran out?"""
        evidence = self.memory.kill_evidence() if self.process.ended_at is not None else ""
        if evidence and (killer == signal.SIGKILL or code == 128 + signal.SIGKILL):
            self.notes.add("the kernel killed it because memory ran out ({})".format(evidence))
            return True
        if evidence and code != 0:
            words = "the kernel killed a process next to it because memory ran out ({})"
            self.notes.add(words.format(evidence))
        elif killer == signal.SIGKILL and self.stops.mode is None and not self.terminated:
            self.notes.add("killed by SIGKILL, not by gpq")
        return False

    def _proves_stop(self, code: Optional[int], killer: Optional[int]) -> bool:
        """Did it prove a checkpoint? After gpq has sent TERM, an end by TERM proves nothing.
        Neither does the end of a process without a handler for the signal."""
        if os.path.exists(os.path.join(self.folder, wire.STOPPED)):
            return True
        if self.stops.mode != "signal":
            return False
        if code == wire.EXIT_PREEMPTED[0]:
            return True
        return not self.terminated and (
            code in wire.EXIT_PREEMPTED or self.signal.has_ended(killer)
        )
