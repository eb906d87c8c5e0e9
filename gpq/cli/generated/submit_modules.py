"""The modules that spell out the options of `gpq submit` for who reads types: made from their
table, gpq/rpc/submit_table.py."""

from __future__ import annotations

from gpq.rpc.submit_table import KINDS, OPTIONS

DEFAULTS = {"str": '""', "bool": "False", "int": "0", "int | None": "None", "list[str]": "[]"}

TEXTS = '''\
"""The record of what was typed for `gpq submit`, made from gpq/rpc/submit_table.py by `make
completions`: edit that instead."""

from __future__ import annotations

import msgspec


class SubmitTexts(msgspec.Struct, frozen=True):
    """The options as typed. No dataclass: importing those costs half of what msgspec does."""

    words: list[str]
    black_box: bool  # they stood after `--`
'''

OPTION_TYPES = '''\
"""The options of `gpq.submit` and their types, made from gpq/rpc/submit_table.py by `make
completions`: edit that instead."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

from gpq.api.options import Duration, Gpus, Moment, Selector, Word


class Options(TypedDict, total=False):
    """The options of `gpq.submit`. They have the names and the meaning of the options of `gpq
    submit`."""

'''


def modules() -> dict[str, str]:
    """Path in the repository -> text."""
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
