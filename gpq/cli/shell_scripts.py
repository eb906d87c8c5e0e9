"""The completion scripts, one per shell, which the package ships in gpq/completions. They know
nothing themselves and ask `gpq __complete`, so an upgrade works at the next TAB.

Exit status 9 of `gpq __complete` means file names. 10 means that the part after `--` is completed
as a line of its own.
"""

import os

import gpq

FOLDER = os.path.join(os.path.dirname(os.path.abspath(gpq.__file__)), "completions")
SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    with open(os.path.join(FOLDER, f"gpq.{shell}"), encoding="utf-8") as stream:
        return stream.read()
