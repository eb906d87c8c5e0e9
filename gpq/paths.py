"""The paths of state, socket and configuration. `gpq.__main__` imports this module, so it imports
only os.

`GPQ_HOME` puts state and socket into one folder. Otherwise the XDG base directories are used.
"""

import os

GONE = "the current directory no longer exists", "change to one that exists"
MARKS = "marks.json"  # data that must not go back with the database, see store/takeover.py


def home() -> str:
    """The state directory: $GPQ_HOME, or $XDG_STATE_HOME/gpq, or ~/.local/state/gpq."""
    own = os.environ.get("GPQ_HOME")
    if own:
        return absolute(own)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    return os.path.join(base, "gpq")


def socket() -> str:
    """The daemon's socket: $GPQ_HOME/gpq.sock, or $XDG_RUNTIME_DIR/gpq/gpq.sock, or in the state
    directory.

    The path of a socket may have at most 107 bytes. The daemon reports a longer one when it starts.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not os.environ.get("GPQ_HOME"):
        return os.path.join(runtime, "gpq", "gpq.sock")
    return signpost()


def signpost() -> str:
    """The socket in the state directory, or a link to it. Programs that know only the state
    directory find the socket here."""
    return os.path.join(home(), "gpq.sock")


def config() -> str:
    """The user's file: $GPQ_CONFIG, or $XDG_CONFIG_HOME/gpq/config.toml, or
    ~/.config/gpq/config.toml."""
    own = os.environ.get("GPQ_CONFIG")
    if own:
        return absolute(own)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "gpq", "config.toml")


def of_jobs(home: str) -> dict[str, str]:
    """The variables with which gpq inside a job of this machine finds the queue of the state
    directory `home` and the configuration in use."""
    is_other = os.environ.get("GPQ_CONFIG") or (
        os.environ.get("XDG_CONFIG_HOME") and os.path.exists(config())
    )
    return {"GPQ_HOME": home, **({"GPQ_CONFIG": config()} if is_other else {})}


def absolute(path: str) -> str:
    """As `os.path.abspath`. Raises UsageError for a relative path in a directory that is gone."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        from gpq.errors import UsageError

        raise UsageError(*GONE) from None


def database() -> str:
    return os.path.join(home(), "gpq.db")


def marks() -> str:
    """Next to the database, with another name: when a damaged database is moved away, files named
    after it move too."""
    return os.path.join(home(), MARKS)


def notifications() -> str:
    """Notifications that gpq still has to send."""
    return os.path.join(home(), "notifications.json")


def snapshots(state: str = "") -> str:
    """Snapshots of code by their SHA-256, in the user's state directory or in `state`."""
    return os.path.join(state or home(), "snapshots")


def verdicts() -> str:
    """The verdicts of `gpq check`."""
    return os.path.join(home(), "checks")


def team(name: str) -> str:
    """The folder of the arbiter of a team that this user runs."""
    return os.path.join(home(), "teams", name)


def team_folders(name: str, uid: int) -> list[str]:
    """Where the socket of the arbiter of this user may be, the first choice first."""
    folder = f"gpq-team-{uid}-{name}"
    return [os.path.join(base, folder) for base in ("/run/gpq", "/tmp")]


def team_state() -> str:
    """What the own daemon remembers of its team."""
    return os.path.join(home(), "team.json")


def daemon_log() -> str:
    return os.path.join(home(), "daemon.log")


def daemon_lock() -> str:
    return os.path.join(home(), "daemon.lock")
