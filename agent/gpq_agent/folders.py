"""Folders that only their owner may use, for gpq's state on every machine.

A folder is as safe as the folders above it: whoever may write to one of them can put another folder
in its place. So this looks at the whole path, as sshd does before it believes a key.
"""

import contextlib
import errno
import grp
import os
import pwd
import stat

__all__ = ["NotPrivate", "make_private", "user_name"]

MOST_LINKS = 40  # in one path, as in the kernel
NAMELESS = 65534
ALL_USERS = ["0", "0", "4294967295"]  # /proc/self/uid_map where every user id has a name


class NotPrivate(Exception):
    """Another user could change what is in a folder. `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def make_private(path: str) -> None:
    """Make a folder of mode 0700 and the missing folders above it, whatever the umask. Narrow one
    that is too open, if it is this user's own.

    The folders and links above it must belong to this user or root. Others may write to one only if
    it is sticky. Raises NotPrivate for a folder that is not safe, and OSError.
    """
    folder, names, links = "/", os.path.abspath(path).split("/")[1:], 0
    while names and links <= MOST_LINKS:
        _check_writers(folder, path)
        entry = os.path.normpath(os.path.join(folder, names.pop(0)))
        if stat.S_ISLNK(_make(entry).st_mode):
            _check_owner(entry, path)
            names = os.readlink(entry).split("/") + names
            folder, links = folder if names[0] else "/", links + 1
        else:
            folder = entry
    status = os.lstat(folder)
    if names or not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    if status.st_uid != os.geteuid():
        problem = "{} belongs to {}, not to you".format(folder, user_name(status.st_uid))
        raise NotPrivate(problem, "choose a folder of your own")
    if status.st_mode & 0o077:
        if folder == "/" or status.st_mode & stat.S_ISVTX:
            raise NotPrivate("{} is for all users".format(folder), "choose a folder in it")
        os.chmod(folder, 0o700)
        if os.lstat(folder).st_mode & 0o077:
            problem = "{} stays open to others, because its file system has no modes".format(folder)
            raise NotPrivate(problem, "choose a folder on another file system")


def _make(path: str) -> os.stat_result:
    """The status of what is there, after making a folder if nothing is."""
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(path)
    with contextlib.suppress(FileExistsError):  # somebody was faster, perhaps somebody else
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # a umask may take even the owner's rights
    return os.lstat(path)


def _check_owner(path: str, below: str) -> os.stat_result:
    """The status of a folder or link above `below`."""
    status = os.lstat(path)
    if status.st_uid not in (os.geteuid(), 0) and not _is_nameless(status.st_uid):
        words = "{} belongs to {}, who could replace {}"
        hint = "choose a folder that is not below it, or ask root to become its owner"
        raise NotPrivate(words.format(path, user_name(status.st_uid), below), hint)
    return status


def _check_writers(folder: str, below: str) -> None:
    status = _check_owner(folder, below)
    group = status.st_mode & stat.S_IWGRP and not _is_own_group(status)
    if (group or status.st_mode & stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        raise NotPrivate(
            "others may write to {}, so they could replace {}".format(folder, below),
            "run `chmod go-w {}`".format(folder)
            if status.st_uid == os.geteuid()
            else "choose another folder, or ask root for `chmod +t {}`".format(folder),
        )


def _is_own_group(status: os.stat_result) -> bool:
    """Is it the private group of the owner? Many systems give each user one, and a umask of 002."""
    with contextlib.suppress(KeyError):
        user, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
        return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return False


def _is_nameless(uid: int) -> bool:
    """In a namespace that lacks some users, such as a container without root: does this id stand
    for all of them? The machine's root is one."""
    with open("/proc/self/uid_map") as users:
        return uid == NAMELESS and users.read().split() != ALL_USERS


def user_name(uid: int) -> str:
    """Login name, or the user id if this machine does not know the name."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)
