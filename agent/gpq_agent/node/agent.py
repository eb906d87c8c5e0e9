"""The agent: answers requests, and holds those that must wait."""

import contextlib
import os
import sys
import traceback
from typing import Dict, Iterator, List, Optional, Set

from gpq_agent import wire
from gpq_agent.node.attempts import Attempts
from gpq_agent.node.devices import slots as cpu_slots
from gpq_agent.node.devices.devices import Devices
from gpq_agent.node.devices.gpu_locks import Locks
from gpq_agent.node.devices.yield_files import Yielding
from gpq_agent.node.doctor.checks import Errands
from gpq_agent.node.environments import Environments
from gpq_agent.node.files.staging import Staging
from gpq_agent.node.host import procs
from gpq_agent.node.operations import Message, Operations, Replies, refusal
from gpq_agent.node.shim import launch, shim
from gpq_agent.node.shim.leases import DaemonEpoch
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.survey import Release, Survey
from gpq_agent.node.trials import Trials
from gpq_agent.node.watches import CALM_POLL, Watches

# answered only after the first look at the GPUs
NEED_DEVICES = ("hello", "probe", "watch", "start")


class Agent:
    """Answers requests, and holds those that must wait. Never blocks for long."""

    def __init__(
        self,
        place: Spool,
        base: Dict[str, str],
        cores: List[int],
        slots: int,
        probe_limit: float,
        probe_period: float,
        default: wire.Attributes,
        locks: str = "",
        visible: str = launch.UUIDS,
        owner: str = "",
        lock_slots: bool = False,
    ) -> None:
        lock_slots = lock_slots and slots > 0
        name = cpu_slots.core_list(cores) if lock_slots else place.id
        machine = cpu_slots.machine(procs.boot_id(), slots, name)
        slot_locks = machine if lock_slots else ""
        attempts = Attempts(place, Locks(locks, place.id, slot_locks))
        compiled = os.path.join(place.path, launch.COMPILED)
        if os.path.isdir(compiled):  # in a process of its own, because it may take long
            shim.detach(place.path, set(), lambda: launch.tidy_compiled(compiled))
        self.environments = Environments(place, base, default)
        yielding = Yielding(attempts.locks.folder, owner)
        self.errands = Errands(place, base, yielding.folder, default.limits)
        self.reign = DaemonEpoch(place, attempts.boot)
        self.staging = Staging(place.checkpoints)
        self.survey = Survey(attempts, yielding)
        self.devices = Devices(
            cpu_slots.slots(
                min(len(cores), wire.LENGTHS["devices"]) if slots < 0 else slots, cores
            ),
            with_gpus=slots <= 0,
            owner_of=attempts.owner_of,
            holder_of=lambda device: self.survey.holders.get(device, ""),
            lock_of=attempts.locks.holder,
            probe_limit=probe_limit,
            probe_period=probe_period,
            slots_if_none=slots < 0,
        )
        self.release = Release(self.devices)
        self.trials = Trials(self.devices.quarantine, attempts.locks)
        self.survey.attach(self.devices, self.release, self.trials)
        self.replies = Replies(place, self.reign)
        self.watches = Watches(place, self.survey, self.replies)
        self.operations = Operations(
            place,
            self.survey,
            self.staging,
            self.reign,
            {"cores": len(cores), "machine": machine},
            base,
            default,
            visible,
        )
        self._waiting: List[Message] = []
        self._told: Set[str] = set()  # problems already reported
        self.survey.refresh()

    def greeting(self) -> Message:
        """The one line that the agent sends unasked: who it is. Devices and attempts come with
        `hello`."""
        return dict(self.operations.identity(), v=wire.VERSION, id=0, ok=True, op="hello")

    def handle_line(self, line: bytes) -> List[Message]:
        """Replies to one request line, none yet if the request has to wait."""
        try:
            message = wire.decode(line)
        except (ValueError, UnicodeDecodeError):
            hint = "send one request per line, see wire.py"
            return [refusal(None, "the line is not a JSON object", hint)]
        if message.get("v") != wire.VERSION:
            problem = "this agent speaks version {}, not {}".format(wire.VERSION, message.get("v"))
            hint = "restart the daemon, so that it ships its own agent"
            return [refusal(message.get("id"), problem, hint)]
        return self._answer(message)

    def tick(self) -> List[Message]:
        """Replies that are ready."""
        with self._survive("checking devices"):
            self.devices.tick(
                is_watched=self.watches.is_pending or bool(self.survey.holders),
                since=self.release.since(),
            )
        with self._survive("testing devices"):
            self.trials.tick()
        waiting_messages, self._waiting = self._waiting, []
        replies: List[Message] = []
        for message in waiting_messages:
            replies += self._answer(message)
        for message, answer in self.environments.ended() + self.errands.ended():
            replies.append(dict(answer, v=wire.VERSION, id=message.get("id"), ok=True))
        if self.watches.is_pending:
            try:
                infos = self.survey.refresh()
            except OSError as error:
                # without a free descriptor or memory to look with, they wait
                if error.errno not in procs.SCARCE:
                    raise
                return replies
            replies += self.watches.answers(infos)
        return replies

    @contextlib.contextmanager
    def _survive(self, work: str) -> Iterator[None]:
        """If this fails, report it once and try again in the next turn."""
        try:
            yield
        except Exception as error:
            if isinstance(error, OSError) and error.errno in procs.SCARCE:
                return
            words = "{}: {!r}".format(work, error)
            if words not in self._told:
                self._told.add(words)
                sys.stderr.write("gpq: a bug while {}\n".format(words))
                traceback.print_exc(file=sys.stderr)

    def patience(self) -> Optional[float]:
        """Seconds in which only a request can matter, None for ever."""
        if self.watches.is_pending:
            return self.watches.patience()
        is_looking = (
            not self.devices.known
            or self.devices.waiting_on() is not None
            or self.environments.is_waited_for
            or self.errands.is_waited_for
            or bool(self.trials.suspects())
        )
        return CALM_POLL if is_looking else None

    def _answer(self, message: Message) -> List[Message]:
        """Replies to one request, none yet if it has to wait."""
        operation = message.get("op")
        # `probe` also waits for the end of a slow look
        is_ready = self.devices.is_seen if operation == "probe" else self.devices.known
        if operation in NEED_DEVICES and not is_ready:
            self._waiting.append(message)
            return []
        if operation == "watch":
            return self.watches.begin(message)
        if operation in ("prepare", "errand"):
            self.survey.touch()
            reply = self.replies.reply(message, self._look)
            return [] if reply.get("later") else [reply]  # a later tick finds the result
        handler = self.operations.by_name.get(str(operation))
        if handler is None:
            hint = "use one of {}".format(", ".join(wire.OPS))
            return [refusal(message.get("id"), "unknown operation {!r}".format(operation), hint)]
        self.survey.touch()
        return [self.replies.reply(message, handler)]

    def _look(self, message: Message) -> Message:
        if message.get("op") == "errand":
            self.errands.begin(message)
            return {"later": True}
        return self.environments.prepare(message) or {"later": True}
