"""The number of GPUs, nodes and tasks, and the memory, that options of sbatch ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpq.errors import UsageError

ONE_PROCESS = (
    "ask for one task and start the processes in the script (`torchrun --nproc-per-node 4"
    " train.py`), or submit the training script itself: gpq submit --gpus 4 train.py"
)
GPUS = ("gpus", "gpus-per-node", "gres", "gpus-per-task")  # the first one that names GPUs counts
TASKS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu")
NUMBERS = ("cpus-per-task", "cpus-per-gpu")
MEMORY = re.compile(r"(\d{1,12})([KMGT]?)B?", re.IGNORECASE)
KIB = {"K": 1, "": 1 << 10, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}


def fields(
    options: Mapping[str, str],
    where: str,
    explicit_fields: Mapping[str, Any],
    unused: list[str],
    *,
    shell: bool,
) -> dict[str, str]:
    """`gpus` and `gpu_type`, unless they are among `explicit_fields`: --gpus, otherwise those per
    node times nodes, otherwise those per task times tasks. Other resources go to `unused`. Raises
    UsageError, also for what a command (`shell`) cannot have."""
    count = nodes(options, where)
    for name in NUMBERS:
        if name in options:
            number(options[name], where, name)
    if shell and count > 1:
        raise UsageError(
            f"{where}: --nodes={count}: gpq runs a command on one server",
            "a script that uses gpq's training library can run on several:"
            f" gpq submit --gpus {count} train.py",
        )
    sizes: dict[str, str] = {}
    if "gpus" not in explicit_fields:
        sizes = _gpus_in_all(options, where, count, unused)
        if "gpu_type" in explicit_fields:
            sizes.pop("gpu_type", None)
    task_count = tasks(options, where, sizes.get("gpus") or str(explicit_fields.get("gpus", "1")))
    if shell and task_count > 1:
        raise UsageError(
            f"{where}: {task_count} tasks: gpq starts a command only once, and has no srun",
            ONE_PROCESS,
        )
    return sizes


def nodes(options: Mapping[str, str], where: str) -> int:
    return number(options.get("nodes", "1").partition("-")[0], where, "nodes")


def tasks(options: Mapping[str, str], where: str, gpus: str) -> int:
    """As sbatch counts them, 1 by default. `gpus`: how many there are in all."""
    for name in TASKS:
        if name in options:
            number(options[name], where, name)
    if "ntasks" in options:
        return int(options["ntasks"])
    if "ntasks-per-node" in options:
        return int(options["ntasks-per-node"]) * nodes(options, where)
    if "ntasks-per-gpu" in options and gpus.isdecimal():
        return int(options["ntasks-per-gpu"]) * int(gpus)
    return 1


def number(text: str, where: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text) or int(text) == 0:
        raise UsageError(
            f"{where}: invalid --{name}={text}: expected a number above 0",
            f"for example --{name}=1",
        )
    return int(text)


def mebibytes(text: str) -> int:
    """MiB of `32G`, `4000M`, `2000`. 0 for all memory, and for values that sbatch would refuse."""
    match = MEMORY.fullmatch(text)
    return -(-int(match[1]) * KIB[match[2].upper()] // 1024) if match else 0


def _gpus_in_all(
    options: Mapping[str, str], where: str, count: int, unused: list[str]
) -> dict[str, str]:
    kinds: set[str] = set()
    gpus_by_option = {
        name: _gpus(options[name], f"{where}: --{name}={options[name]}", unused, kinds)
        for name in GPUS
        if name in options
    }
    task_count = tasks(
        {name: options[name] for name in ("nodes", *TASKS[:2]) if name in options}, where, "1"
    )
    factors = {"gpus": 1, "gpus-per-node": count, "gres": count, "gpus-per-task": task_count}
    total = next(
        (gpus_by_option[name] * factors[name] for name in GPUS if gpus_by_option.get(name)), 0
    )
    sizes = {"gpus": str(total)} if total else {}
    return {**sizes, "gpu_type": kinds.pop()} if kinds else sizes


def _gpus(text: str, context: str, unused: list[str], kinds: set[str]) -> int:
    """The number in `2`, `a100:2`, `gpu`, `gpu:a100:2(S:0)`. Adds the type to `kinds`. 0 if it asks
    for no GPU."""
    total = 0
    gres = "--gres=" in context
    for part in text.split(","):
        words = re.sub(r"\(.*\)$", "", part.strip()).split(":")
        if gres and words[:2] == ["gres", "gpu"]:
            words = words[1:]
        if gres and words[0] != "gpu":
            if words[0] not in ("none", "0", ""):
                unused.append(f"--gres={part.strip()}")
            continue
        words = words[1:] if gres else words
        count = words.pop() if words and words[-1].isdigit() else "1"
        if len(words) > 1 or (words and not re.fullmatch(r"[A-Za-z0-9._-]+", words[0])):
            raise UsageError(
                f"{context}: invalid number of GPUs",
                "for example --gres=gpu:2, --gres=gpu:a100:2 or --gpus=2",
            )
        kinds.update(words)
        total += int(count)
    if len(kinds) > 1:
        raise UsageError(f"{context}: a gpq job uses GPUs of one type", "choose it with --gpu-type")
    return total
