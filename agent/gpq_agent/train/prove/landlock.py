"""Lets a program and its children write only below one folder, /dev and /proc, with Linux's
Landlock and without root.

    python -I landlock.py FOLDER PROGRAM [ARG]...

Any other write fails with `Permission denied`, in C code too. Landlock does not cover rights and
times of files. A kernel without it (before 5.19), or a container that forbids it, runs the program
anyway. This file imports nothing of gpq, because it becomes the program.
"""

import ctypes
import os
import sys
from typing import List, Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # numbers of the system calls
VERSION = 1  # a flag: CREATE_RULESET returns its version
BENEATH = 1  # a rule on a folder
NO_NEW_PRIVILEGES = 38
# Rights by their bits: write to a file, remove folders and files, make seven kinds of them.
WRITING = sum(1 << bit for bit in (1, *range(4, 13)))
REFER, TRUNCATE = 1 << 13, 1 << 14  # a name moves to another folder (version 2), truncate (3)
LEAST_VERSION = 2  # the first version forbids every rename from one folder to another
SHARED = ("/dev", "/proc")


class Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def confine(folders: Sequence[str]) -> bool:
    """From now on this thread and its children can write only below these. False if that is
    impossible."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)
    if version < LEAST_VERSION:
        return False
    rights = WRITING | REFER | (TRUNCATE if version >= 3 else 0)
    ruleset = ctypes.c_uint64(rights)  # in version 1 the struct has this field alone
    size = ctypes.c_size_t(ctypes.sizeof(ruleset))
    rules = _check(libc.syscall(CREATE_RULESET, ctypes.byref(ruleset), size, 0))
    for folder in folders:
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = Beneath(rights, descriptor)
        _check(libc.syscall(ADD_RULE, rules, BENEATH, ctypes.byref(rule), 0))
        os.close(descriptor)
    _check(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check(libc.syscall(RESTRICT_SELF, rules, 0))
    os.close(rules)
    return True


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def main(words: List[str]) -> None:
    folder, *command = words
    confine([folder, *SHARED])
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
