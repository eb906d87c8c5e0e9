"""The seeds and states of all generators of random numbers that a script may draw from."""

import hashlib
import random
import sys
from typing import Any, Callable, List, Sequence, Tuple

import torch

LARGEST_SEED = 1 << 32  # numpy takes no larger one, so scripts use none
_unseeded: List[int] = []  # at most one: the seed that torch chose, if the script drew with it


def seed_unseeded() -> None:
    """Called once, on import. Seed torch if the script has not, so that what it draws before
    `gpq.init()` is the same in every attempt."""
    seed = torch.initial_seed()
    if seed < LARGEST_SEED:
        return
    if not torch.equal(torch.Generator().manual_seed(seed).get_state(), torch.get_rng_state()):
        _unseeded.append(seed)
    torch.default_generator.manual_seed(0)


def is_unseeded(indices: Sequence[int], size: int) -> bool:
    """Are these from the first permutation of `size` that torch drew, and before the import?"""
    own = [int(index) for index in indices]
    for seed in _unseeded:
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
        begin = order.index(own[0]) if own[0] in order else 0
        return order[begin : begin + len(own)] == own
    return False


def stable_seed(*parts: int) -> int:
    """63 bits that depend only on the parts, the same on every machine and Python."""
    text = ":".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("ascii"), digest_size=8).digest(), "big") >> 1


def script_seed() -> int:
    """The seed that the script gave torch, or 0. Without one torch has drawn a seed of 53 bits
    itself."""
    seed = torch.initial_seed()
    return seed if seed < LARGEST_SEED else 0


def seed_all(seed: int) -> None:
    """Seed every generator, for what a script draws before its first step."""
    torch.manual_seed(seed)
    seed_host(seed)


def seed_host(seed: int) -> None:
    """Seed every generator but those of GPUs."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")  # torch imports numpy
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def reseed(seed: int, step: int, rank: int) -> None:
    """Seed every generator for this replica at this step. So an attempt repeats if its history
    does."""
    seed_all(stable_seed(seed, step, rank))


def generator_states() -> List[Tuple[Callable[[Any], Any], Any]]:
    """For every generator in use: how to set it, and its state."""
    states: List[Tuple[Callable[[Any], Any], Any]] = []
    states.append((torch.set_rng_state, torch.get_rng_state()))
    states.append((random.setstate, random.getstate()))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators = torch.cuda.default_generators
        states += [(generator.set_state, generator.get_state()) for generator in generators]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states.append((numpy.random.set_state, numpy.random.get_state()))
    return states


def set_generators(states: List[Tuple[Callable[[Any], Any], Any]]) -> None:
    """Restore them."""
    for set_state, state in states:
        set_state(state)
