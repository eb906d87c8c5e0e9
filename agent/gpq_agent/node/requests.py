"""What the node agent answers to each request of wire.OPS, and which requests wait for something
first."""

import base64
import contextlib
import functools
import hashlib
import json
import os
import platform
import socket
import sys
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set

from gpq_agent import wire
from gpq_agent.node.attempts.attempts import Attempts
from gpq_agent.node.attempts.device_release import Release
from gpq_agent.node.attempts.environments import Environments
from gpq_agent.node.attempts.heartbeats import pulses
from gpq_agent.node.attempts.states import LIVE
from gpq_agent.node.attempts.trials import Trials
from gpq_agent.node.devices import gpu_names, slots
from gpq_agent.node.devices.devices import Devices
from gpq_agent.node.devices.gpu_locks import TAKEN, Locks
from gpq_agent.node.devices.yield_files import Yielding
from gpq_agent.node.doctor.runner import Errands
from gpq_agent.node.files.staging import PARALLEL, Staging
from gpq_agent.node.host import attributes, logs, network, procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import start_order
from gpq_agent.node.shim.leases import Reign
from gpq_agent.node.spool.shapes import statement
from gpq_agent.node.spool.spool import Spool

Message = Dict[str, Any]
BUSY_POLL, CALM_POLL = 0.05, 0.25  # seconds between two looks while a watch is pending
BUSY_FOR = 5.0  # seconds after a change during which the next one is likely
REPORT_BUDGET = 256 << 10
TAIL_LIMIT = 1 << 20
# Not from a daemon that a newer one has followed:
REIGNING = (
    "watch",
    "prepare",
    "start",
    "stop",
    "control",
    "forget",
    "purge",
    "stage",
    "put",
    "drop",
)
# answered only once the first look at the GPUs has ended
NEED_DEVICES = ("hello", "probe", "watch", "start")


class Watch(NamedTuple):
    """A pending long poll."""

    message: Message
    until: float
    # forgotten before it was asked: the daemon's database is older than that
    recalled: List[str] = []


class Agent:
    """Answers requests; holds those that must wait. Blocks nowhere for long."""

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
        visible: str = gpu_names.UUIDS,
    ) -> None:
        self.spool = place
        self.base = base
        self.default = default
        self.visible = visible
        self.cores = cores
        self.attempts = Attempts(place, Locks(locks, place.id))
        self.environments = Environments(place, base, default)
        self.yielding = Yielding(self.attempts.locks.folder)
        self.errands = Errands(place, base, self.yielding.folder, default.limits)
        self.reign = Reign(place, self.attempts.boot)
        self.staging = Staging(place.checkpoints)
        self.quitting = False
        self._holders: Dict[str, str] = {}
        self._waiting: List[Message] = []
        self._watches: List[Watch] = []
        self._changed_at = time.monotonic()
        self._digest = ""
        self._least_lease = 0.0  # seconds, of the attempts that live; 0: none has one
        self.devices = Devices(
            _cpu_slots(slots, cores),
            with_gpus=slots <= 0,
            owner_of=self.attempts.owner_of,
            holder_of=lambda device: self._holders.get(device, ""),
            lock_of=self.attempts.locks.holder,
            probe_limit=probe_limit,
            probe_period=probe_period,
            slots_if_none=slots < 0,
        )
        self.release = Release(self.devices)
        self.trials = Trials(self.devices.quarantine, self.attempts.locks)
        self._told: Set[str] = set()  # what has gone wrong
        self._operations: Dict[str, Callable[[Message], Message]] = {
            "hello": self._hello,
            "ping": lambda _: {"time": time.time()},
            "probe": self._probe,
            "start": self._start,
            "stop": self._stop,
            "control": self._control,
            "tail": self._tail,
            "forget": self._forget,
            "purge": self._purge,
            "quit": self._quit,
            **self.staging.operations,
            "drop": self._drop,
        }
        self.refresh()

    # -- the loop's side

    def greeting(self) -> Message:
        """The one line that the agent says unasked: who it is. Devices and attempts come with
        `hello`."""
        return dict(self._identity(), v=wire.VERSION, id=0, ok=True, op="hello")

    def handle_line(self, line: bytes) -> List[Message]:
        """Replies to one request line: none yet when it has to wait."""
        try:
            message = wire.decode(line)
        except (ValueError, UnicodeDecodeError):
            return [
                self.refusal(
                    None, "a line that is not a JSON object", "one request a line, as wire.py says"
                )
            ]
        if message.get("v") != wire.VERSION:
            problem = "this node agent speaks version {}, not {}".format(
                wire.VERSION, message.get("v")
            )
            return [
                self.refusal(
                    message.get("id"), problem, "restart the daemon, so that it ships its own agent"
                )
            ]
        if self._is_early(message):
            self._waiting.append(message)
            return []
        return self._answer(message)

    def tick(self) -> List[Message]:
        """Replies that have become due."""
        with self._survived("looking at devices"):
            self.devices.tick(
                is_watched=bool(self._watches) or bool(self._holders), since=self.release.since()
            )
        with self._survived("trying devices"):
            self.trials.tick()
        replies: List[Message] = [
            self._guarded(message, answer) for message, answer in self.staging.tick()
        ]
        early_messages = [message for message in self._waiting if self._is_early(message)]
        due_messages = [message for message in self._waiting if message not in early_messages]
        self._waiting = early_messages
        for message in due_messages:
            replies += self._answer(message)
        for message, answer in self.environments.ended() + self.errands.ended():
            replies.append(dict(answer, v=wire.VERSION, id=message.get("id"), ok=True))
        if self._watches:
            try:
                infos = self.refresh()
            except OSError as error:
                # no descriptor or memory left to look with: they wait until there is
                if error.errno not in procs.SCARCE:
                    raise
                return replies
            due_watches = [watch for watch in self._watches if self._is_due(watch, infos)]
            self._watches = [watch for watch in self._watches if watch not in due_watches]
            replies += [
                self._guarded(watch.message, self._teller(infos, watch.recalled))
                for watch in due_watches
            ]
        return replies

    @contextlib.contextmanager
    def _survived(self, work: str) -> Iterator[None]:
        """Whatever goes wrong with this is told once, and done again in the next turn."""
        try:
            yield
        except Exception as error:
            if isinstance(error, OSError) and error.errno in procs.SCARCE:
                return
            words = "{}: {!r}".format(work, error)
            if words not in self._told:
                self._told.add(words)
                sys.stderr.write("gpq: a bug, while {}\n".format(words))
                traceback.print_exc(file=sys.stderr)

    def _is_early(self, message: Message) -> bool:
        """Must it wait for the first look at the GPUs? Who asks for nothing else waits for the end
        of a slow one too."""
        if message.get("op") == "probe":
            return not self.devices.is_seen
        return message.get("op") in NEED_DEVICES and not self.devices.known

    def patience(self) -> Optional[float]:
        """Seconds for which nothing but a request can matter; None for ever."""
        now = time.monotonic()
        if self.staging.busy:
            return 0.0
        if self._watches:
            poll = BUSY_POLL if now - self._changed_at < BUSY_FOR else CALM_POLL
            return max(0.0, min([poll] + [watch.until - now for watch in self._watches]))
        if not self.devices.known or self.devices.waiting_on() is not None or self._is_looking():
            return CALM_POLL
        return None

    def refresh(self) -> List[wire.AttemptInfo]:
        """Look at every attempt anew."""
        infos = []
        holders: Dict[str, str] = {}
        stuck: Dict[str, str] = {}
        attempts = self.attempts.all()
        self.attempts.tend(attempts)
        for info in attempts:
            key = wire.attempt_key(info.job, info.attempt)
            order = self.attempts.order(key)
            devices = order.devices if order else []
            info = self.release.filter(key, info, devices)
            infos.append(info)
            if info.state == "exited":
                self.trials.hear(
                    info,
                    devices,
                    functools.partial(statement, self.spool.folder(key), wire.FIRST_ERROR),
                )
            if info.state in LIVE or self.release.holding(key):
                holders.update(dict.fromkeys(devices, key))
            if info.state in LIVE and info.exit is not None:
                # nothing but what cannot be killed leaves a note so early
                stuck.update(
                    dict.fromkeys(devices, "attempt {}: {}".format(key, info.exit.get("note", "")))
                )
        self._holders = holders
        self.devices.stuck = {**stuck, **self.trials.suspects()}
        self._least_lease = min(
            (info.lease for info in infos if info.state in LIVE and info.lease > 0), default=0.0
        )
        digest = _digest(infos, self.devices.current(), self.yielding.users())
        if digest != self._digest:
            self._digest = digest
            self._changed_at = time.monotonic()
        return infos

    @staticmethod
    def refusal(number: Any, error: str, hint: str = "", kind: str = "wrong") -> Message:
        """The reply that says no. `kind`: one of wire.REFUSALS, or TAKEN."""
        reply = {
            "v": wire.VERSION,
            "id": number,
            "ok": False,
            "error": error,
            "hint": hint,
            "kind": kind,
        }
        return dict(reply, kind="busy", taken=True) if kind == TAKEN else reply

    def _answer(self, message: Message) -> List[Message]:
        operation = message.get("op")
        if operation == "watch":
            return self._begin_watch(message)
        if operation in ("prepare", "errand"):
            return self._begin_look(message)
        if operation in PARALLEL:
            self.staging.begin(message, self.reign.admit)
            return []
        handler = self._operations.get(str(operation))
        if handler is None:
            hint = "it is one of {}".format(", ".join(wire.OPS))
            return [self.refusal(message.get("id"), "no operation {!r}".format(operation), hint)]
        self._changed_at = time.monotonic()
        return [self._guarded(message, handler)]

    def _guarded(self, message: Message, handler: Callable[[Message], Message]) -> Message:
        """Whatever goes wrong with one request is told in its reply; the agent lives on."""
        number = message.get("id")
        try:
            if message.get("op") in REIGNING:
                self.reign.admit()
            return dict(handler(message), v=wire.VERSION, id=number, ok=True)
        except SpoolError as error:
            return self.refusal(number, error.message, error.hint, error.kind)
        except OSError as error:
            return self.refusal(
                number,
                "the spool cannot be used: {}".format(error),
                "check {}".format(self.spool.path),
                "busy",
            )
        except (KeyError, TypeError, ValueError) as error:
            problem = "request {!r} is not complete or not right: {!r}".format(
                message.get("op"), error
            )
            return self.refusal(number, problem, "see wire.OPS")
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return self.refusal(
                number, "the node agent failed: {!r}".format(error), "this is a bug in gpq"
            )

    # -- operations

    def _identity(self) -> Message:
        return {
            "version": wire.VERSION,
            "boot_id": self.attempts.boot,
            "time": time.time(),
            "python": platform.python_version(),
            "host": socket.gethostname(),
            "cores": len(self.cores),
            "memory_mib": slots.memory_mib(),
            "spool": self.spool.id,
            "path": self.spool.path,
            "library": os.path.dirname(os.path.dirname(os.path.abspath(wire.__file__))),
            "address": _own_address(os.environ.get("SSH_CONNECTION", "")),
            "network": [
                [interface.name, interface.address]
                for interface in network.candidates(network.interfaces())
            ],
            "ephemeral": list(network.ephemeral_ports()),
            "storage": self.staging.storage,
            "damage": self.spool.damage + self.staging.damage,
        }

    def _hello(self, message: Message) -> Message:
        self.reign.greet(message.get("store"), message.get("epoch"))
        stamp = self.reign.stamp()  # before the look: what is told was so then, or later
        infos = self.attempts.count(self.refresh())
        return dict(
            self._identity(),
            stamp=stamp,
            devices=self._device_list(),
            attempts=[info._asdict() for info in infos],
        )

    def _probe(self, _: Message) -> Message:
        devices = self.devices
        facts = {"driver": devices.driver, "error": devices.error, "notice": devices.notice()}
        return dict(facts, devices=self._device_list(), beside=self.spool.beside())

    def _start(self, message: Message) -> Message:
        order = start_order.parse_order(message.get("order"))
        key = wire.attempt_key(order.job, order.attempt)
        if self.attempts.order(key) is not None:
            if self.attempts.is_forgotten(key):
                # its end is known: this is an order of another time
                problem = (
                    "attempt {} was on this server before; the daemon's database was restored from"
                    " a copy".format(key)
                )
                raise SpoolError(problem, "start another attempt", "used")
            return {"state": "already", "attempt": self._info(key)}
        self.refresh()
        if order.code:
            order = order._replace(
                cwd=os.path.join(self.staging.code(order.code), order.cwd), code=""
            )
        if order.lease > 0:
            self.reign.ready(order.store)
        order = self._with_attributes(order)
        devices = self._usable(key, order)
        state, _ = self.attempts.start(order, devices, self.base, self.reign.admit, self.visible)
        return {"state": state, "attempt": self._info(key)}

    def _with_attributes(self, order: wire.StartOrder) -> wire.StartOrder:
        """Those that its process will have, and a line on what of the wanted ones this server does
        not allow."""
        request = attributes.of(order.attributes) if order.attributes else self.default
        allowance, shortfalls = attributes.grant(request, self.default)
        server = (
            order.servers[order.node_rank] if order.node_rank < len(order.servers) else "the server"
        )
        line = "{} does not allow what the job's shell had: {} ({})".format(
            server, "; ".join(shortfalls), attributes.MENDS
        )
        shortfall = line if shortfalls and order.attributes else ""
        return order._replace(attributes=allowance._asdict(), shortfall=shortfall)

    def _usable(self, key: str, order: wire.StartOrder) -> List[wire.DeviceInfo]:
        """The devices of an order. Raises SpoolError for one that is not there or not to be had."""
        devices_by_id = {device.id: device for device in self.devices.current()}
        for name in order.devices:
            if name not in devices_by_id:
                raise SpoolError(
                    "no device {} on this server".format(name),
                    "it has {}".format(", ".join(sorted(devices_by_id)) or "none"),
                    "busy",
                )
            if devices_by_id[name].state != "ok":
                raise SpoolError(
                    "{} is {}: {}".format(
                        name, devices_by_id[name].state, devices_by_id[name].reason
                    ),
                    "choose another device",
                    TAKEN,
                )
            if self.devices.unsettled(name):  # it may be gone in a moment
                raise SpoolError(
                    "{} is {}".format(name, self.devices.unsettled(name)), "wait a little", "busy"
                )
            if self._holders.get(name, key) != key:
                raise SpoolError(
                    "{} is still held by attempt {}".format(name, self._holders[name]),
                    "wait for its end",
                    "busy",
                )
        return [devices_by_id[name] for name in order.devices]

    def _stop(self, message: Message) -> Message:
        key = _key(message)
        self.attempts.stop(key, str(message["mode"]), max(0.0, float(message.get("grace", 0.0))))
        return {"attempt": self._info(key)}

    def _control(self, message: Message) -> Message:
        self.attempts.control(_key(message), message["control"])
        return {}

    def _tail(self, message: Message) -> Message:
        key = _key(message)
        if self.attempts.order(key) is None:
            raise SpoolError("no attempt {} on this node".format(key))
        limit = min(int(message.get("limit", 1 << 16)), TAIL_LIMIT)
        path = os.path.join(self.spool.folder(key), wire.LOG)
        offset, skipped = int(message.get("offset", 0)), 0
        if message.get("skip") and offset >= 0:
            data, skipped, offset, size = logs.kept(path, offset, limit)
        else:
            data, offset, size = logs.tail(path, offset, limit)
        return {
            "skipped": skipped,
            "data": base64.b64encode(data).decode("ascii"),
            "offset": offset,
            "size": size,
        }

    def _forget(self, message: Message) -> Message:
        key = _key(message)
        if self.release.holding(key):
            raise SpoolError(
                "the GPUs of attempt {} are not free yet".format(key),
                "wait until it is reported as exited",
            )
        self.attempts.forget(key)
        return {}

    def _purge(self, message: Message) -> Message:
        self.attempts.purge(int(message["job"]))
        return {}

    def _drop(self, message: Message) -> Message:
        live_attempts = [info for info in self.attempts.all() if info.state in LIVE]
        if "job" in message and any(info.job == int(message["job"]) for info in live_attempts):
            raise SpoolError("job {} runs here".format(message["job"]), "its files are in use")
        if "code" in message:
            orders = [
                self.attempts.order(wire.attempt_key(info.job, info.attempt))
                for info in live_attempts
            ]
            if any(order is not None and str(message["code"]) in order.cwd for order in orders):
                raise SpoolError(
                    "the code {} is in use here".format(message["code"]), "wait for its jobs to end"
                )
        return self.staging.operations["drop"](message)

    def _quit(self, _: Message) -> Message:
        self.quitting = True
        return {}

    def _begin_look(self, message: Message) -> List[Message]:
        """What can be told at once is; the rest with the tick that finds it."""
        self._changed_at = time.monotonic()
        reply = self._guarded(message, self._look)
        return [] if reply.get("later") else [reply]

    def _look(self, message: Message) -> Message:
        if message.get("op") == "errand":
            self.errands.begin(message)
            return {"later": True}
        return self.environments.prepare(message) or {"later": True}

    def _is_looking(self) -> bool:
        return (
            self.environments.is_waited_for
            or self.errands.is_waited_for
            or bool(self.trials.suspects())
        )

    def _info(self, key: str) -> Message:
        for info in self.refresh():
            if wire.attempt_key(info.job, info.attempt) == key:
                return self.attempts.count([info])[0]._asdict()
        attempt = self.attempts.look(key)  # forgotten, and not reported any more
        if attempt is None:
            raise SpoolError("no attempt {} on this node".format(key))
        return attempt._asdict()

    def _device_list(self) -> List[Message]:
        return [device._asdict() for device in self.devices.current()]

    # -- watching

    def _begin_watch(self, message: Message) -> List[Message]:
        try:
            offsets = message.get("offsets", {})
            if not isinstance(offsets, dict) or not all(
                isinstance(value, int) for value in offsets.values()
            ):
                raise ValueError("offsets")
            for key in offsets:
                wire.parse_attempt_key(key)
            wait = min(max(0.0, float(message.get("wait", 0.0))), 3600.0)
            self.devices.haste = max(0.0, float(message.get("look", 0.0)))
            self.reign.admit()
            self.reign.heard(message.get("heard"), self._least_lease)
        except SpoolError as error:
            return [self.refusal(message.get("id"), error.message, error.hint, error.kind)]
        except OSError as error:  # what is not renewed ends, so that nothing runs twice
            return [
                self.refusal(
                    message.get("id"), "leases cannot be renewed: {}".format(error), kind="busy"
                )
            ]
        except (TypeError, ValueError) as error:
            return [
                self.refusal(
                    message.get("id"), "watch is not right: {}".format(error), "see wire.OPS"
                )
            ]
        recalled_keys = [key for key in sorted(offsets) if self.attempts.is_forgotten(key)]
        self._watches.append(Watch(message, time.monotonic() + wait, recalled_keys))
        return []  # the tick that follows answers it if there is news already

    def _is_due(self, watch: Watch, infos: List[wire.AttemptInfo]) -> bool:
        if time.monotonic() >= watch.until or watch.message.get("seen") != self._digest:
            return True
        offsets = watch.message.get("offsets", {})
        return any(
            logs.has_lines(os.path.join(self.spool.folder(key), wire.REPORT), offsets[key])
            for key in (wire.attempt_key(info.job, info.attempt) for info in infos)
            if key in offsets
        )

    def _teller(
        self, infos: List[wire.AttemptInfo], recalled_keys: List[str]
    ) -> Callable[[Message], Message]:
        recalled_attempts = [
            info for info in map(self.attempts.look, recalled_keys) if info is not None
        ]
        return lambda message: self._news(message, infos + recalled_attempts)

    def _news(self, message: Message, infos: List[wire.AttemptInfo]) -> Message:
        """Every attempt as it is, each with its new report lines; fair shares of the budget, so
        that none starves."""
        stamp = self.reign.stamp()
        offsets = message.get("offsets", {})
        readers = [info for info in infos if wire.attempt_key(info.job, info.attempt) in offsets]
        share = REPORT_BUDGET // max(1, len(readers))
        attempts = []
        for info in self.attempts.count(infos):
            key = wire.attempt_key(info.job, info.attempt)
            if key in offsets:
                path = os.path.join(self.spool.folder(key), wire.REPORT)
                report, offset = logs.lines_after(path, offsets[key], share)
                ranks = (
                    [pulse._asdict() for pulse in pulses(self.spool.folder(key))]
                    if info.state in LIVE
                    else []
                )
                info = info._replace(report=report, report_offset=offset, ranks=ranks)
                if report:
                    self._changed_at = time.monotonic()
            attempts.append(info._asdict())
        return {
            "digest": self._digest,
            "attempts": attempts,
            "devices": self._device_list(),
            "yields": self.yielding.users(),
            "time": time.time(),
            "stamp": stamp,
        }


def _key(message: Message) -> str:
    """The attempt that a request names. Raises ValueError for anything but ``42.1``, a path above
    all."""
    return wire.attempt_key(*wire.parse_attempt_key(str(message["attempt"])))


def _own_address(connection: str) -> str:
    """The address under which ssh reached this machine, "" when nobody came by ssh."""
    words = connection.split()  # client's address and port, then ours
    return words[2] if len(words) == 4 else ""


def _cpu_slots(count: int, cores: List[int]) -> List[wire.DeviceInfo]:
    return slots.slots(len(cores) if count < 0 else count, cores)


def _digest(
    infos: List[wire.AttemptInfo], devices: List[wire.DeviceInfo], yields: List[str]
) -> str:
    """Changes when a state does; not with memory in use, utilisation or the number of processes."""
    state = [
        [
            [info.job, info.attempt, info.state, info.pid, (info.exit or {}).get("note")]
            for info in infos
        ],
        [
            [
                device.id,
                device.state,
                [process["pid"] for process in device.processes if not process["attempt"]],
            ]
            for device in devices
        ],
        yields,
    ]
    return hashlib.sha256(json.dumps(state).encode("utf-8")).hexdigest()[:16]
