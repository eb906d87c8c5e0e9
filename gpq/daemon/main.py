"""The daemon: puts store, world, controller and socket together, and ends them in order. `python -m
gpq.daemon.main`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import glob
import logging
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields

import gpq
from gpq import config, outward, paths
from gpq.control.controller import Controller
from gpq.core.model.jobs import Attributes
from gpq.core.model.snapshot import Config
from gpq.daemon import process
from gpq.daemon.clock import DaemonEpoch
from gpq.daemon.files.backups import Backups
from gpq.daemon.files.garbage_collection import GarbageCollector
from gpq.daemon.nodes.registry import NodeRegistry
from gpq.daemon.nodes.world import LiveWorld
from gpq.daemon.server import Server
from gpq.daemon.service import Service
from gpq.daemon.team import TeamLink
from gpq.errors import GpqError
from gpq.folders import make_private
from gpq.notify.notifier import Notifier
from gpq.policies.registry import POLICIES, policy
from gpq.policies.team import TeamPolicy
from gpq.store import disk
from gpq.store.lock import DaemonLock
from gpq.store.sqlite import SqliteStore

LOOK_SECONDS = 5.0  # between two checks whether the state directory is still its own
# How long a thread may compute before another gets its turn. A thread that answers a command needs
# several turns.
SWITCH_SECONDS = 0.001
MOST_DIGITS = 12  # of a job's id. Jobs may put any name into the spool

log = logging.getLogger("gpq.daemon")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until asked to end. Returns the exit code."""
    options = _options(arguments)
    sys.setswitchinterval(SWITCH_SECONDS)
    if options.detached and os.fork() > 0:
        os._exit(0)
    ready = process.Ready(options.ready_fd)
    try:
        default = process.harden()
        disk.refuse_network(paths.home())  # before anything is written or locked there
        make_private(paths.home())
        with contextlib.closing(DaemonLock()) as lock:
            process.log_to_file(paths.daemon_log(), alone=options.detached)
            try:
                return _serve(ready, default, lock, options.metrics)
            except Exception:
                lock.disown()  # before anybody learns of it
                raise
    except GpqError as error:
        # to the log and to the process that started the daemon, or to stderr if there is neither
        if logging.getLogger().handlers:
            log.error("%s", f"{error.message} ({error.hint})" if error.hint else error.message)
        elif not ready.failed(error):
            print(f"gpq: {error.message}\n{error.hint}".rstrip(), file=sys.stderr)  # noqa: T201
        ready.failed(error)
        return error.code
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            log.error("the disk is full: %s", error)
            full = disk.full(paths.database())
            ready.failed(full)
            return full.code
        log.exception("the daemon stops because of a bug")
        ready.failed(
            GpqError(f"the daemon failed to start: {error!r:.200}", "see `gpq daemon logs`")
        )
        raise


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpq-daemon", description="the gpq daemon, in the foreground"
    )
    parser.add_argument(
        "--detached", action="store_true", help="run in the background and log only to a file"
    )
    parser.add_argument(
        "--ready-fd",
        type=int,
        default=-1,
        help="write to this descriptor that the daemon is ready, or why it is not",
    )
    parser.add_argument(
        "--metrics",
        default="",
        help="[ADDR:]PORT for Prometheus, instead of the one in config.toml",
    )
    return parser.parse_args(arguments)


def _serve(ready: process.Ready, default: Attributes, lock: DaemonLock, metrics: str = "") -> int:
    """From the first read of the configuration to the last close."""
    fingerprint = config.fingerprint()
    settings = config.load(policies=POLICIES)
    scheduling_policy = policy(settings.policy)
    ending = process.Ending()
    with contextlib.ExitStack() as stack:
        database = SqliteStore(paths.database(), first_id=_first_id(), marks=paths.marks())
        store = stack.enter_context(contextlib.closing(database))
        may_order = lambda: lock.is_held() and store.holds()  # noqa: E731
        epoch = DaemonEpoch(store.id, store.epoch, may_order, store.secret)
        core = core_config(settings, scheduling_policy.gang, int(epoch.secret_of("ports"), 16))
        world = LiveWorld(
            settings.nodes,
            paths.home(),
            attributes=default,
            epoch=epoch,
            log_limit=int(settings.log_limit * (1 << 20)),
            standby_after=settings.settle_seconds if settings.standby else None,
            setup_limit=settings.setup_limit,
        )
        stack.callback(world.close)
        team, link = settings.team, None
        if team.name:
            link = TeamLink(team, paths.team_state(), world.now, world.agents)
            scheduling_policy = TeamPolicy(link.latest, shares=team.without_arbiter == "share")
        controller = Controller(world, store, scheduling_policy, core)
        registry = NodeRegistry(world, controller, settings, fingerprint)
        view = lambda: controller.snapshot  # noqa: E731
        notifier = Notifier(
            store,
            view,
            controller.changed,
            world.tail,
            world.now,
            paths.notifications(),
            outward.notify(settings.notify).lines,
        )
        stack.callback(notifier.close)
        backups = Backups(store)
        service = Service(
            controller,
            store,
            world,
            registry,
            settings,
            ending.set,
            unsent=notifier.notes,
            warnings=lambda: backups.warnings() + (link.warnings() if link else []),
        )
        server = Server(paths.socket(), service.handle, paths.signpost())
        stack.callback(server.close)
        for note in store.notes:
            log.warning("%s", note)
        log.info(
            "gpq %s, pid %d, epoch %d, %s", gpq.__version__, os.getpid(), store.epoch, paths.home()
        )
        keeper = GarbageCollector(
            world.ask,
            view,
            store,
            paths.snapshots(),
            expire=lambda: service.cleaning.expire(settings.keep),
        )
        stack.callback(keeper.close)
        service.cleaning.follow = keeper.hasten
        _serve_metrics(metrics or settings.metrics, service, core.policy, stack)
        loop = _Loop(controller, ending)
        world.start()
        loop.start()
        server.start()
        keeper.start()
        notifier.start()
        if link is not None:
            stack.callback(link.close)
            service.readings.team, service.readings.summary = link.why, link.summary
            link.start(controller, registry.addresses)
        with process.ended_by_signals(ending):
            ready.serving()
            gc.freeze()  # later collections need not look at what exists now
            _until_ending(ending, backups, lock)
        log.info("stopping. Jobs keep running")
        server.close()
        world.close()  # the loop then gets nothing more
        loop.join(timeout=30.0)
        if loop.error is not None:
            raise loop.error
        if lock.is_held():
            backups.write()
    log.info("ended")
    return 0


def core_config(settings: config.FileConfig, gang: bool, port_salt: int) -> Config:
    """The settings that the core needs have the same names in both."""
    names = {field.name for field in fields(Config)} & {field.name for field in fields(settings)}
    values = {name: getattr(settings, name) for name in names}
    values["user_weights"] = tuple(sorted(settings.user_weights.items()))
    if settings.team.name:  # what is due between users, and when, is the arbiter's business
        values |= {"floors": False, "policy": TeamPolicy.name, "settle_seconds": 0.0}
        gang = False
    return Config(**values, gang=gang, port_salt=port_salt)


def _serve_metrics(
    address: str, service: Service, policy: str, stack: contextlib.ExitStack
) -> None:
    """Until `stack` ends, if anybody asked for it. An unavailable port is reported, but the daemon
    continues."""
    if not address:
        return
    from gpq.daemon import metrics  # only this imports prometheus-client

    look = lambda: metrics.Scrape(*service.readings.look())  # noqa: E731
    endpoint = metrics.Exporter(outward.address(address), metrics.registry(look, policy))
    stack.callback(endpoint.close)
    service.metrics = endpoint.state
    endpoint.start()


class _Loop(threading.Thread):
    """The controller's thread. When it ends for any reason, the daemon ends."""

    def __init__(self, controller: Controller, ending: process.Ending) -> None:
        super().__init__(name="controller", daemon=True)
        self._controller = controller
        self._ending = ending
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._controller.run()
        except BaseException as error:
            self.error = error
        finally:
            self._ending.set()


def _until_ending(ending: process.Ending, backups: Backups, lock: DaemonLock) -> None:
    """Wait, and copy the state when that is due. Ends when the state directory is no longer its
    own."""
    while not ending.wait(min(backups.seconds_until_due(), LOOK_SECONDS)):
        if not lock.is_held():
            log.error(
                "%s was removed or replaced: this daemon stops, jobs keep running",
                paths.daemon_lock(),
            )
            return
        if not backups.seconds_until_due():
            backups.write()


def _first_id() -> int:
    """An id above every attempt that servers still have, so that no id is reused after a database
    was lost."""
    folder, last = os.path.join(paths.home(), "nodes"), 0
    for pattern in ("*/attempts", "*/ended/*"):
        for place in glob.glob(pattern, root_dir=folder):
            with contextlib.suppress(OSError):
                for name in os.listdir(os.path.join(folder, place)):
                    number = name.partition(".")[0]
                    if number.isdecimal() and len(number) <= MOST_DIGITS:
                        last = max(last, int(number))
    return last + 1


if __name__ == "__main__":
    sys.exit(main())
