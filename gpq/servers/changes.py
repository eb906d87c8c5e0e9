"""What `gpq nodes` and `gpq yield` do to servers, for the command line and gpq's Python interface
alike. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from gpq.client import daemon_control
from gpq.client.connection import call, connect
from gpq.errors import DaemonUnreachable, GpqError, UsageError
from gpq.options.parsing import datetimes, values
from gpq.rpc import daemon_answers, node_answers, requests

Note = Callable[[str, str], None]  # a remark, and what to do
ONE_END = "gpq nodes reserve needs either --until or --for-duration"
PATIENCE = 30.0  # seconds for a server's answer


def removed(node: str, note: Note, *, force: bool) -> bool:
    """Take it out of config.toml; did a daemon hear of it? Raises GpqError; then the file is as it
    was."""
    from gpq.servers import config_file

    before = config_file.read()
    after = config_file.without_node(before, node)
    if not force:
        call(
            requests.Info(), daemon_answers.DaemonInfo
        )  # started before the file changes, it knows what is on the node
    config_file.write(after, before)
    try:
        return _reload(note, force=force)
    except GpqError:
        config_file.write(before, after)
        raise


def taken_in(names: Sequence[str], note: Note) -> bool:
    """Have the daemon take in new servers. They are in the file already: what it refuses is a
    remark."""
    try:
        return _reload(note, force=False)
    except GpqError as error:
        note(
            f"the daemon could not add {', '.join(names)}: {error.message}",
            daemon_control.RESTART,
        )
        return False


def _reload(note: Note, *, force: bool) -> bool:
    """False when no daemon runs: the next one reads the file as it is then."""
    try:
        with connect(start=False) as connection:
            answer = connection.call(requests.Reload(force), node_answers.Reloaded)
    except DaemonUnreachable:
        return False
    if answer.restart_needed:
        note(f"{daemon_control.CHANGED}, not only by this command", daemon_control.RESTART)
    return True


def reserve(target: str, user: str, start: str, until: str, duration: str) -> requests.Reserve:
    """`gpu1:0-1` from a moment to another, or for so long, all as typed. Raises UsageError."""
    node, colon, gpus = target.partition(":")
    if bool(until) == bool(duration):
        raise UsageError(ONE_END, "for example --for-duration 2d")
    now = datetime.now().astimezone()
    begin = datetimes.moment(start, "--from", now)
    end = (
        datetimes.moment(until, "--until", now)
        if until
        else begin + values.seconds(duration, "--for-duration")
    )
    if end <= now.timestamp():
        raise UsageError(
            f"gpq nodes reserve: --until {until} is in the past", "use a time in the future"
        )
    if end <= begin:
        raise UsageError(
            "gpq nodes reserve: the end is before the start", "check --from and --until"
        )
    return requests.Reserve(node, begin, end, values.gpu_list(gpus, target) if colon else [], user)


def yielded(node: str, seconds: float) -> node_answers.Yielded:
    """Have `node` go back to its owner for so long, 0: no more. Raises GpqError where it cannot be
    asked."""
    request = requests.Errand(node, "yield", {"seconds": seconds}, PATIENCE)
    answer = call(request, node_answers.ErrandResult).answer
    if "error" in answer:
        raise GpqError(f"cannot ask {node}: {answer['error']}", f"run `gpq doctor {node}`")
    return node_answers.Yielded(
        node, str(answer.get("user", "")), seconds or None, bool(answer.get("wanted", True))
    )
