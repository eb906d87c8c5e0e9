"""The daemon: puts store, world, controller and socket together, and ends them in order. `python -m
gpq.daemon.main`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import faulthandler
import gc
import json
import logging
import logging.handlers
import os
import resource
import select
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from io import TextIOWrapper

import gpq
from gpq import attributes, config, daemon, outward, paths
from gpq.connectors import environment
from gpq.control.controller import Controller
from gpq.core.model.jobs import Attributes
from gpq.core.model.snapshot import Config
from gpq.daemon.clock.epoch import Reign
from gpq.daemon.files.garbage_collection import Keeper
from gpq.daemon.nodes.registry import Fleet
from gpq.daemon.nodes.world import LiveWorld
from gpq.daemon.notifications.notifier import Notifier
from gpq.daemon.service.server import Server
from gpq.daemon.service.service import About, Service
from gpq.errors import GpqError, Refused
from gpq.policies.registry import POLICIES, policy
from gpq.store import disk
from gpq.store.lock import DaemonLock
from gpq.store.sqlite import SqliteStore

LOG_BYTES = 4 << 20
LOGS_KEPT = 2
BACKUP_SECONDS = 3600.0
FIRST_BACKUP_SECONDS = 60.0  # where the last one is older than that, or there is none
# at the start of a daemon another is made of a backup that is older than that,
FRESH_SECONDS = 300.0
START_BACKUP_SECONDS = 3.0  # so soon: those who waited for the daemon come first
LOOK_SECONDS = 5.0  # between two looks whether the state directory is still its own
# That a thread may compute before another has its turn: one that answers a command needs several.
SWITCH_SECONDS = 0.001

log = logging.getLogger("gpq.daemon")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until asked to end. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gpq-daemon", description="the gpq daemon, in the foreground"
    )
    parser.add_argument(
        "--detached", action="store_true", help="leave the caller: fork, and log to a file only"
    )
    parser.add_argument(
        "--ready-fd",
        type=int,
        default=-1,
        help="tell on this descriptor that it serves, or why not",
    )
    parser.add_argument(
        "--metrics", default="", help="[ADDR:]PORT for Prometheus, instead of what config.toml says"
    )
    options = parser.parse_args(arguments)
    sys.setswitchinterval(SWITCH_SECONDS)
    if options.detached and os.fork() > 0:
        os._exit(0)
    ready = Ready(options.ready_fd)
    try:
        default = _harden()
        disk.refuse_network(paths.home())  # before anything is written or locked there
        disk.make_folder(paths.home())
        with contextlib.closing(DaemonLock()) as lock:
            _log_to_file(alone=options.detached)
            try:
                return _serve(ready, default, lock, options.metrics)
            except Exception:
                lock.disown()  # before anybody is told
                raise
    except GpqError as error:
        if logging.getLogger().handlers:
            log.error("%s%s", error.message, f" ({error.hint})" if error.hint else "")
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
        log.exception("the daemon ends by a bug")
        ready.failed(
            GpqError(f"the daemon failed as it started: {error!r:.200}", "see `gpq daemon logs`")
        )
        raise


class Ready:
    """The pipe to whoever started the daemon; told once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)

    def serving(self) -> bool:
        return self._tell({"ok": True, "pid": os.getpid()})

    def failed(self, error: GpqError) -> bool:
        return self._tell(
            {"ok": False, "code": error.code, "error": error.message, "hint": error.hint}
        )

    def _tell(self, verdict: dict[str, object]) -> bool:
        """False when there is nobody to tell."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return False
        with contextlib.suppress(OSError):  # who started it may be gone
            os.write(descriptor, json.dumps(verdict).encode())
        os.close(descriptor)
        return True


def _harden() -> Attributes:
    """Be the same whichever shell started it, and however: its variables, limits, niceness and
    cores are that one's no longer. Files for the owner alone, no core dump (it would hold every
    job's environment), no death by a closed pipe.

    What it had before, for jobs that noted none: older submissions, and those of other programs.
    """
    umask, nice, limits = attributes.own()
    variables = environment.of_daemon() | daemon.THREADS
    os.environ.clear()
    os.environ.update(variables)
    os.umask(0o077)
    attributes.widen()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return Attributes(
        umask, nice, tuple((name, soft, hard) for name, (soft, hard) in limits.items())
    )


class _LogFile(logging.handlers.RotatingFileHandler):
    """Follows no link: it would write into whatever somebody made it lead to."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_not_through_links)


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _log_to_file(*, alone: bool) -> None:
    try:
        file_handler = _LogFile(
            paths.daemon_log(), maxBytes=LOG_BYTES, backupCount=LOGS_KEPT, encoding="utf-8"
        )
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Refused(
            f"{paths.daemon_log()} is a link, and not written through", "remove it"
        ) from None
    handlers: list[logging.Handler] = [file_handler]
    if not alone:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(
        level=logging.INFO,
        handlers=handlers,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    logging.raiseExceptions = False  # a full disk stops the log, not the daemon
    # a crash within a library says where, in the log: it has no exception
    faulthandler.enable(
        _not_through_links(paths.daemon_log(), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    )


def _serve(ready: Ready, default: Attributes, lock: DaemonLock, metrics: str = "") -> int:
    """From the first read of the configuration to the last close."""
    fingerprint = config.fingerprint()
    settings = config.load(policies=POLICIES)
    core = Config(
        interval=settings.interval,
        policy=settings.policy,
        fairness_power=settings.fairness_power,
        restart_seconds=settings.restart_seconds,
        settle_seconds=settings.settle_seconds,
        idle_after=settings.idle_after,
        seed=settings.seed,
        events=settings.events,
        by_user=settings.by_user,
        use_length=settings.use_length,
        fairness_floor=settings.fairness_floor,
        use_priors=settings.use_priors,
        measured_restart=settings.measured_restart,
        port_salt=zlib.crc32(f"{os.getuid()}:{paths.home()}".encode()),
    )
    scheduling_policy = policy(core.policy)
    ending = Ending()
    with contextlib.ExitStack() as stack:
        database = SqliteStore(paths.database(), first_id=_first_id(), marks=paths.marks())
        store = stack.enter_context(contextlib.closing(database))
        reign = Reign(store.id, store.epoch, lambda: lock.is_held() and store.holds())
        world = LiveWorld(
            settings.nodes,
            paths.home(),
            attributes=default,
            reign=reign,
            log_limit=int(settings.log_limit * (1 << 20)),
            setup_limit=settings.setup_limit,
        )
        stack.callback(world.close)
        controller = Controller(world, store, scheduling_policy, core)
        notify = outward.notify(settings.notify)
        about = About(
            core,
            world.now(),
            store.epoch,
            settings.grace,
            settings.requeue_on_lost,
            notify,
            settings.accept,
        )
        fleet = Fleet(world, controller, settings, fingerprint)
        service = Service(
            controller,
            store,
            world.tail,
            about,
            fleet,
            ending.set,
            world.errand,
            world.stager.progress,
            world.on_peer,
        )
        server = Server(paths.socket(), service.handle, paths.signpost())
        stack.callback(server.close)
        for note in store.notes:
            log.warning("%s", note)
        log.info(
            "gpq %s, pid %d, epoch %d, %s", gpq.__version__, os.getpid(), store.epoch, paths.home()
        )
        keeper = Keeper(world.ask, lambda: controller.snapshot, store, paths.snapshots())
        stack.callback(keeper.close)
        view, path = (lambda: controller.snapshot), paths.notifications()
        notifier = Notifier(
            store, view, controller.changed, world.tail, world.now, path, notify.lines
        )
        stack.callback(notifier.close)
        service.readings.notes = notifier.notes
        _serve_metrics(metrics or settings.metrics, service, core.policy, stack)
        loop = _Loop(controller, ending)
        world.start()
        loop.start()
        server.start()
        keeper.start()
        notifier.start()
        with ended_by_signals(ending):
            ready.serving()
            gc.freeze()  # what is there now stays: later collections need not look at it
            _until_ending(ending, store, lock)
        log.info("ending; jobs run on")
        server.close()
        world.close()  # the loop then has nothing more to come
        loop.join(timeout=30.0)
        if loop.error is not None:
            raise loop.error
        if lock.is_held():
            _back_up(store)
    log.info("ended")
    return 0


def _serve_metrics(
    address: str, service: Service, policy: str, stack: contextlib.ExitStack
) -> None:
    """Until `stack` ends, where anybody asked for it. A port that cannot be had is told, and no
    reason to end."""
    if not address:
        return
    from gpq.daemon.metrics import exporter, metrics  # these alone import prometheus-client

    look = lambda: metrics.Look(*service.readings.look())  # noqa: E731
    endpoint = exporter.Exporter(outward.address(address), metrics.registry(look, policy))
    stack.callback(endpoint.close)
    service.metrics = endpoint.state
    endpoint.start()


class Ending:
    """Set from any thread and by signals. Its wait looks at a pipe: a signal that comes between
    Python's last look for one and the system call writes to it, and so ends the call, which the
    signal alone would not."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()  # the latter for `signal.set_wakeup_fd`
        os.set_blocking(self._read, False)
        os.set_blocking(self.descriptor, False)
        self._pipe = select.poll()
        self._pipe.register(self._read, select.POLLIN)

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full, so set already
            os.write(self.descriptor, b"\0")

    def wait(self, timeout: float) -> bool:
        """Was it set? Seconds. Such a wait takes all that was set before it."""
        return bool(self._pipe.poll(timeout * 1000.0)) and bool(os.read(self._read, 1 << 16))


class _Loop(threading.Thread):
    """The controller's thread. When it ends for whatever reason, the daemon does."""

    def __init__(self, controller: Controller, ending: Ending) -> None:
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


def _until_ending(ending: Ending, store: SqliteStore, lock: DaemonLock) -> None:
    """Wait, and copy the state soon and then every hour, however often the daemon was started in
    it. Ends by itself when the state directory is no longer its own."""
    path = store.path + ".backup"
    copied_at = time.monotonic() + _until_backup(path, START_BACKUP_SECONDS, FRESH_SECONDS)
    while not ending.wait(min(max(copied_at - time.monotonic(), 0.0), LOOK_SECONDS)):
        if not lock.is_held():
            log.error(
                "%s was removed or replaced: this daemon ends, jobs run on", paths.daemon_lock()
            )
            return
        if time.monotonic() >= copied_at:
            _back_up(store)
            copied_at = time.monotonic() + _until_backup(path)


def _until_backup(
    path: str, least: float = FIRST_BACKUP_SECONDS, most: float = BACKUP_SECONDS
) -> float:
    """Seconds, `least` to `most`, until the last one is as old as `most`."""
    try:
        age = time.time() - os.path.getmtime(path)
    except OSError:  # there is none
        return least
    return min(max(most - age, least), most)


def _back_up(store: SqliteStore) -> None:
    try:
        store.backup()
    except GpqError as error:
        log.warning("%s", error)


@contextlib.contextmanager
def ended_by_signals(ending: Ending) -> Iterator[None]:
    """SIGTERM and SIGINT end the daemon cleanly."""
    before_descriptor = signal.set_wakeup_fd(ending.descriptor, warn_on_full_buffer=False)
    before = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_descriptor)


def _first_id() -> int:
    """Above every attempt that nodes still have: where a database was lost, no id is given out
    again."""
    largest = 0
    folder = os.path.join(paths.home(), "nodes")
    with contextlib.suppress(OSError):
        for node in os.listdir(folder):
            with contextlib.suppress(OSError):
                names = os.listdir(os.path.join(folder, node, "attempts"))
                largest = max(
                    [
                        largest,
                        *(
                            int(name.split(".")[0])
                            for name in names
                            if name.split(".")[0].isdigit()
                        ),
                    ]
                )
    return largest + 1


if __name__ == "__main__":
    sys.exit(main())
