"""Operations that the agent answers at once, by name, and replies. If a request fails, its own
reply says so."""

import base64
import os
import platform
import socket
import sys
import time
import traceback
from typing import Any, Callable, Dict, List

from gpq_agent import wire
from gpq_agent.node import environment_setup
from gpq_agent.node.devices import slots
from gpq_agent.node.devices.gpu_locks import TAKEN
from gpq_agent.node.files.staging import Staging
from gpq_agent.node.host import attributes, logs, network
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import launch, start_order
from gpq_agent.node.shim.leases import DaemonEpoch
from gpq_agent.node.spool import checkpoint_folder
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.states import LIVE
from gpq_agent.node.survey import Survey

Message = Dict[str, Any]
Handler = Callable[[Message], Message]
# Refused if a newer daemon has taken over:
REIGNING = (
    "watch", "prepare", "start", "warm", "stop", "control", "forget", "drop",
)  # fmt: skip

TAIL_LIMIT = 1 << 20
LONGEST_WORDS = 4096  # characters of a refusal. A job's own text may be in it


def refusal(number: Any, error: str, hint: str = "", kind: str = "wrong") -> Message:
    """The reply that refuses. `kind`: one of wire.REFUSALS, or TAKEN."""
    words = {"error": error[:LONGEST_WORDS], "hint": hint[:LONGEST_WORDS]}
    reply = {"v": wire.VERSION, "id": number, "ok": False, **words}
    return dict(reply, kind="busy", taken=True) if kind == TAKEN else dict(reply, kind=kind)


class Replies:
    """The replies of one agent. `reign`: which daemon may change something."""

    def __init__(self, place: Spool, reign: DaemonEpoch) -> None:
        self.spool = place
        self.reign = reign

    def reply(self, message: Message, handler: Handler) -> Message:
        """If a request fails, its reply says so, and the agent lives on."""
        number = message.get("id")
        try:
            if message.get("op") in REIGNING:
                self.reign.admit()
            return dict(handler(message), v=wire.VERSION, id=number, ok=True)
        except SpoolError as error:
            return refusal(number, error.message, error.hint, error.kind)
        except wire.NotPrivate as error:
            return refusal(number, str(error), error.hint, "busy")
        except OSError as error:
            words = "cannot use the spool: {}".format(error)
            return refusal(number, words, "check {}".format(self.spool.path), "busy")
        except (KeyError, TypeError, ValueError) as error:
            problem = "request {!r} is incomplete or invalid: {!r}".format(message.get("op"), error)
            return refusal(number, problem, "see wire.OPS")
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return refusal(number, "the agent failed: {!r}".format(error), "this is a bug in gpq")


class Operations:
    """The operations of one agent. `facts`: part of its greeting. `base`: the environment of a
    login, which all jobs have. `default`: what the agent had when it started. `visible`: see
    `launch.list_names`."""

    def __init__(
        self,
        place: Spool,
        survey: Survey,
        staging: Staging,
        reign: DaemonEpoch,
        facts: Message,
        base: Dict[str, str],
        default: wire.Attributes,
        visible: str = launch.UUIDS,
    ) -> None:
        self.spool = place
        self.survey = survey
        self.attempts = survey.attempts
        self.devices = survey.devices
        self.release = survey.release
        self.staging = staging
        self.reign = reign
        self.facts = facts
        self.base = base
        self.default = default
        self.visible = visible
        self.quitting = False
        self.by_name: Dict[str, Handler] = {
            "hello": self._hello,
            "ping": lambda _: {"time": time.time()},
            "probe": self._probe,
            "start": self._start,
            "warm": self._warm,
            "stop": self._stop,
            "control": self._control,
            "tail": self._tail,
            "forget": self._forget,
            "quit": self._quit,
            "kept": self._kept,
            "drop": self._drop,
        }

    def identity(self) -> Message:
        # client's address and port, then those at which ssh reached this machine
        connection = os.environ.get("SSH_CONNECTION", "").split()
        return {
            "version": wire.VERSION,
            "boot_id": self.attempts.boot,
            "time": time.time(),
            "python": platform.python_version(),
            "host": socket.gethostname(),
            **self.facts,
            "memory_mib": slots.memory_mib(),
            "spool": self.spool.id,
            "path": self.spool.path,
            "library": os.path.dirname(os.path.dirname(os.path.abspath(wire.__file__))),
            "address": connection[2] if len(connection) == 4 else "",
            "network": [
                [interface.name, interface.address]
                for interface in network.candidates(network.interfaces())[: wire.LENGTHS["network"]]
            ],
            "ephemeral": list(network.ephemeral_ports()),
            "storage": self.staging.storage,
            "damage": (self.spool.damage + self.staging.damage)[: wire.LENGTHS["damage"]],
        }

    def _hello(self, message: Message) -> Message:
        self.reign.greet(message.get("store"), message.get("epoch"))
        stamp = self.reign.stamp()  # before the look, so that the report is at least this fresh
        infos = self.attempts.count(self.survey.refresh())
        return dict(
            self.identity(),
            stamp=stamp,
            devices=self.survey.device_list(),
            attempts=[info._asdict() for info in infos],
            standbys=self.attempts.standbys.ready,
        )

    def _probe(self, _: Message) -> Message:
        devices = self.devices
        facts = {"driver": devices.driver, "error": devices.error, "notice": devices.notice()}
        return dict(facts, devices=self.survey.device_list(), beside=self.spool.beside())

    def _start(self, message: Message) -> Message:
        order = start_order.parse_order(message.get("order"))
        key = wire.attempt_key(order.job, order.attempt)
        if self.attempts.files.order(key) is not None:
            if self.attempts.is_forgotten(key):
                # its end is known, so this order is outdated
                problem = (
                    "attempt {} was on this server before: the daemon's database was restored from"
                    " a copy".format(key)
                )
                raise SpoolError(problem, "start another attempt", "used")
            return {"state": "already", "attempt": self.survey.attempt(key)}
        self.survey.refresh()
        if order.lease > 0:
            self.reign.ready(order.store)
        order = self._with_attributes(self._with_code(order))
        devices = self._usable(key, order)
        state, _ = self.attempts.start(order, devices, self.base, self.reign.admit, self.visible)
        return {"state": state, "attempt": self.survey.attempt(key)}

    def _warm(self, message: Message) -> Message:
        order = start_order.parse_order(message.get("order"))
        order = self._with_attributes(self._with_code(order))
        devices = [device for device in self.devices.current() if device.id in order.devices]
        env = launch.environment(self.spool, order, self.base, devices, self.visible)
        self.attempts.standbys.expect(*environment_setup.prepare(self.spool, order, env))
        return {}

    def _with_code(self, order: wire.StartOrder) -> wire.StartOrder:
        """Start it in the folder of its frozen code, and with its stdin, if it has some."""
        if order.stdin:
            stdin = os.path.join(self.staging.code(order.stdin), wire.STDIN)
            order = order._replace(stdin=stdin)
        if not order.code:
            return order
        return order._replace(cwd=os.path.join(self.staging.code(order.code), order.cwd), code="")

    def _with_attributes(self, order: wire.StartOrder) -> wire.StartOrder:
        """Set the attributes that its process will have, and a line about those that this server
        does not allow, and about paths that it lacks. A TMPDIR that it lacks becomes /tmp."""
        request = attributes.of(order.attributes) if order.attributes else self.default
        allowance, shortfalls = attributes.grant(request, self.default)
        server = (
            order.servers[order.node_rank] if order.node_rank < len(order.servers) else "the server"
        )
        line = "{} does not allow what the job's shell had: {} ({})".format(
            server, "; ".join(shortfalls), attributes.MENDS
        )
        lines = [line] if shortfalls and order.attributes else []
        missing = start_order.missing_paths(order)
        if missing:
            paths = ", ".join("{}={}".format(name, order.env[name]) for name in missing)
            lines.append("{} lacks {}".format(server, paths))
        env = dict(order.env)
        if "TMPDIR" in missing:
            env["TMPDIR"] = "/tmp"  # without it, $TMPDIR/name would be a path in the root
            lines.append("the job's TMPDIR is /tmp")
        shortfall = "; ".join(lines)[:LONGEST_WORDS]
        return order._replace(attributes=allowance._asdict(), shortfall=shortfall, env=env)

    def _usable(self, key: str, order: wire.StartOrder) -> List[wire.DeviceInfo]:
        """The devices of an order. Raises SpoolError if one is missing or not available."""
        devices_by_id = {device.id: device for device in self.devices.current()}
        for name in order.devices:
            device = devices_by_id.get(name)
            if device is None:
                hint = "it has {}".format(", ".join(sorted(devices_by_id)) or "none")
                raise SpoolError("no device {} on this server".format(name), hint, "busy")
            if device.state != "ok":
                problem = "{} is {}: {}".format(name, device.state, device.reason)
                raise SpoolError(problem, "choose another one", TAKEN)
            user = self.devices.unsettled_user(name)
            if user:  # it may be gone in a moment
                raise SpoolError("{} is {}".format(name, user), "try again in a moment", "busy")
            holder = self.survey.holders.get(name, key)
            if holder != key:
                problem = "attempt {} still uses {}".format(holder, name)
                raise SpoolError(problem, "wait until it ends", "busy")
        return [devices_by_id[name] for name in order.devices]

    def _stop(self, message: Message) -> Message:
        key = _key(message)
        self.attempts.stop(key, str(message["mode"]), max(0.0, float(message.get("grace", 0.0))))
        return {"attempt": self.survey.attempt(key)}

    def _control(self, message: Message) -> Message:
        self.attempts.control(_key(message), message["control"])
        return {}

    def _tail(self, message: Message) -> Message:
        key = _key(message)
        if self.attempts.files.order(key) is None:
            raise SpoolError("no attempt {} on this server".format(key))
        limit = min(int(message.get("limit", 1 << 16)), TAIL_LIMIT)
        path = os.path.join(self.spool.folder(key), wire.LOG)
        offset, skipped = int(message.get("offset", 0)), 0
        if message.get("skip") and offset >= 0:
            data, skipped, offset, size = logs.kept_tail(path, offset, limit)
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
            problem = "the GPUs of attempt {} are not free yet".format(key)
            raise SpoolError(problem, "wait until it is reported as exited")
        self.attempts.forget(key)
        return {}

    def _kept(self, _: Message) -> Message:
        folders = self.spool.ended_folders()[: wire.LENGTHS["forgotten"]]
        return dict(checkpoint_folder.jobs(self.staging.folder), forgotten=folders)

    def _drop(self, message: Message) -> Message:
        if "forgotten" in message:
            jobs = {int(job) for job in message["jobs"]}
            return {"left": self.spool.sweep(str(message["forgotten"]), jobs)}
        live_attempts = [info for info in self.attempts.all() if info.state in LIVE]
        if "job" in message and any(info.job == int(message["job"]) for info in live_attempts):
            raise SpoolError("job {} runs here".format(message["job"]), "its files are in use")
        if "code" in message:
            orders = [
                self.attempts.files.order(wire.attempt_key(info.job, info.attempt))
                for info in live_attempts
            ]
            places = [order.cwd + order.stdin for order in filter(None, orders)]
            if any(str(message["code"]) in place for place in places):
                problem = "the code {} is in use here".format(message["code"])
                raise SpoolError(problem, "wait for its jobs to end")
        self.staging.drop(message)
        return {}

    def _quit(self, _: Message) -> Message:
        self.quitting = True
        return {}


def _key(message: Message) -> str:
    """The attempt that a request names. Raises ValueError for anything but ``42.1``, above all for
    a path."""
    return wire.attempt_key(*wire.parse_attempt_key(str(message["attempt"])))
