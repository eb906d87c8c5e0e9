"""The arbiter as a process: its lock, its files, its socket. `python -m gpq.arbiter.main TEAM`."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import logging
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

from gpq import config, paths
from gpq.arbiter import roster
from gpq.arbiter.arbiter import Arbiter
from gpq.daemon import process
from gpq.daemon.main import core_config
from gpq.daemon.server import Door, Server
from gpq.errors import GpqError, Refused
from gpq.folders import make_private
from gpq.policies.registry import POLICIES, policy
from gpq.rpc.team_codec import decode_team_request
from gpq.rpc.team_messages import MAX_LINE

PER_USER = 4  # connections of one uid, and so many more that wait, as until an end is noticed
PER_SECOND = 20.0  # messages of one uid
LONGEST_WAIT = 3600.0
FORBIDDEN = "/etc/gpq/no-team"  # if there is such a file, no arbiter starts on this machine
log = logging.getLogger("gpq.arbiter")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until asked to end. Returns the exit code."""
    options = _options(arguments)
    if options.detached and os.fork() > 0:
        os._exit(0)
    ready = process.Ready(options.ready_fd)
    name, folder = options.team, paths.team(options.team)
    try:
        if os.path.exists(FORBIDDEN):
            raise Refused(
                "the administrator of this machine allows no team here", f"ask about {FORBIDDEN}"
            )
        process.harden()
        # what one member asks keeps the threads of others waiting for less long
        sys.setswitchinterval(0.0005)
        make_private(folder)
        _lock(os.path.join(folder, "lock"), name)
        process.log_to_file(os.path.join(folder, "arbiter.log"), alone=options.detached)
        if options.new:
            roster.create(os.path.join(folder, "roster.json"), name, options.group)
        return _serve(name, folder, ready)
    except GpqError as error:
        if not ready.failed(error):
            print(f"gpq: {error.message}\n{error.hint}".rstrip(), file=sys.stderr)  # noqa: T201
        return error.code


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpq-arbiter", description="the arbiter of a team")
    parser.add_argument("team")
    parser.add_argument("--new", action="store_true", help="make the team, with you as its admin")
    parser.add_argument("--group", default="", help="Unix group whose users may join a new team")
    parser.add_argument("--detached", action="store_true", help="run in the background")
    parser.add_argument("--ready-fd", type=int, default=-1, help="as for the daemon")
    return parser.parse_args(arguments)


def _serve(name: str, folder: str, ready: process.Ready) -> int:
    # its own account may be a member
    settings = replace(config.load(policies=POLICIES), team=config.TeamConfig())
    scheduling_policy = policy(settings.policy)
    arbiter = Arbiter(folder, scheduling_policy, core_config(settings, scheduling_policy.gang, 0))
    ending = process.Ending()
    door = Door(
        admits=arbiter.admits,
        refusal=arbiter.no_member(),
        per_user=PER_USER,
        parked=PER_USER,
        everybody=True,
        longest_line=MAX_LINE,
        lingers=False,
        decode=decode_team_request,
        per_second=PER_SECOND,
    )
    with contextlib.ExitStack() as stack:
        server = Server(_socket(name), arbiter.handle, door=door)
        stack.callback(server.close)
        stack.callback(arbiter.close)
        arbiter.reserve = server.reserve
        server.reserve(arbiter.roster.uids)
        log.info("team %s, pid %d, epoch %d", name, os.getpid(), arbiter.ledger.epoch)
        loop = threading.Thread(target=_decide, args=(arbiter, ending), name="arbiter")
        loop.start()
        server.start()
        with process.ended_by_signals(ending):
            ready.serving()
            while not ending.wait(LONGEST_WAIT):
                pass
        arbiter.close()
        loop.join(timeout=30.0)
    return 0


def _decide(arbiter: Arbiter, ending: process.Ending) -> None:
    """When it ends for any reason, the process ends."""
    try:
        arbiter.run()
    finally:
        ending.set()


def _socket(name: str) -> str:
    """In the first folder in which this user can have one."""
    for folder in paths.team_folders(name, os.getuid()):
        if os.access(os.path.dirname(folder), os.W_OK):
            return os.path.join(folder, "sock")
    raise Refused("there is no folder for the arbiter's socket", "make /tmp writable")


def _lock(path: str, name: str) -> None:
    """Until this process ends, however it does. Raises Refused if there is another one."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise Refused(
            f"the arbiter of team {name} runs already", "there is nothing to do"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
