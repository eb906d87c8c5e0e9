"""Makes the modules that list the options of `gpq submit` with their types, from the table in
gpq/rpc/submit_table.py."""

from __future__ import annotations

from gpq.rpc.submit_table import KINDS, OPTIONS

DEFAULTS = {"str": '""', "bool": "False", "int": "0", "int | None": "None", "list[str]": "[]"}

TEXTS = '''\
"""The options of `gpq submit` as typed. Made from gpq/rpc/submit_table.py by `make completions`, so
edit that instead."""

from __future__ import annotations

import msgspec


class SubmitTexts(msgspec.Struct, frozen=True):
    """The options as typed. Not a dataclass, because importing those takes half as long as
    msgspec."""

    words: list[str]
    black_box: bool  # the words came after `--`
'''

OPTION_TYPES = '''\
"""The options of `gpq.submit` and their types. Made from gpq/rpc/submit_table.py by `make
completions`, so edit that instead."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

from gpq.api.options import Duration, Gpus, Moment, Selector, Word


class Options(TypedDict, total=False):
    """The options of `gpq.submit`, with the names of the command line. `gpq submit --help` explains
    them."""

'''


def modules() -> dict[str, str]:
    """Path in the repository -> contents."""
    texts = [
        f"    {option.name}: {option.typed} = {DEFAULTS[option.typed]}\n"
        for option in OPTIONS
        if option.part != "call"
    ]
    types = [
        f"    {option.name}: {KINDS[option.kind][1]}\n"
        for option in OPTIONS
        if option.part == "job"
    ]
    return {
        "gpq/options/submit_texts.py": TEXTS + "".join(texts),
        "gpq/api/option_types.py": OPTION_TYPES + "".join(types),
    }
