"""Who holds the loop over the loader: what `islice`, `zip` and their like make of it, seen at the first fetch of an attempt.

Such an object counts batches where nobody looks, so what it does is told before it shows. Follows the chain from the
loader's own generator outwards; what it cannot see, it does not find.
"""

import gc
import inspect
import itertools
import operator
import types
import warnings
from typing import Any, Iterator, List, Tuple

DEEPEST = 8  # wrappers around each other
SINGLE = (enumerate, itertools.islice, itertools.takewhile, itertools.dropwhile, filter)
TOGETHER = (zip, itertools.zip_longest, map)
RANGES = (type(iter(range(0))), type(iter(range(1 << 70))))
ENDLESS = (itertools.count, itertools.repeat)  # they only count, or always give the same
ASKS = ("step", "should_stop", "progress")  # of a job: a test that reads these is no count of its own


def look(generator: Any, frame: Any, steps: int) -> List[Tuple[str, str]]:
    """(habit, what it is) of whatever stands between `generator` and the loop. `frame`: the one that asks for the first batch;
    `steps`: bodies of an epoch where nothing is cut. Looks through all objects of the process, once a wrapper."""
    found: List[Tuple[str, str]] = []
    held = generator
    for _ in range(DEEPEST):
        outer, sources = _holder(held)
        if outer is None:
            if not _is_generator(frame):
                break
            outer, frame = _generator_of(frame), frame.f_back
            if outer is None:
                break
        elif isinstance(outer, TOGETHER):
            found += _beside(outer, sources, held, steps)
        elif _ends_early(outer, steps):
            found.append(("own-break", ""))
        held = outer
    return found


def _holder(held: Any) -> Tuple[Any, Tuple[Any, ...]]:
    """(the iterator that takes from this one, all that it takes from); (None, ()) if there is none."""
    for item in gc.get_referrers(held):
        if type(item) in SINGLE:
            return item, (held,)
        if type(item) is tuple:
            for outer in gc.get_referrers(item):
                if type(outer) in TOGETHER:
                    return outer, item
    return None, ()


def _is_generator(frame: Any) -> bool:
    return frame is not None and bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def _generator_of(frame: Any) -> Any:
    for item in gc.get_objects():
        if type(item) is types.GeneratorType and item.gi_frame is frame:
            return item
    return None


def _beside(outer: Any, sources: Tuple[Any, ...], held: Any, steps: int) -> Iterator[Tuple[str, str]]:
    """What else is taken at the same time. zip() ends with the shortest, the others are asked in their order."""
    before = True
    for each in sources:
        if each is held:
            before = False
        elif type(each) in RANGES:
            if not isinstance(outer, itertools.zip_longest) and operator.length_hint(each) + before <= steps:
                yield "own-break", ""
        elif type(each) not in ENDLESS:
            yield "own-zip", type(each).__name__


def _ends_early(outer: Any, steps: int) -> bool:
    """Does it leave an epoch of so many bodies, by what it counts or sees itself?"""
    if isinstance(outer, itertools.islice):
        stop = _stop(outer)
        return stop is not None and stop <= steps
    if isinstance(outer, itertools.takewhile):
        tests = [each for each in gc.get_referents(outer) if callable(each)]
        return not any(name in ASKS for each in tests for name in _names(each))
    return False


def _stop(piece: Any) -> Any:
    """Where an islice ends; None: not before its source, or not known."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a newer Python no longer wants to copy it, and the newest does not
            return piece.__reduce__()[1][2]
    except (TypeError, IndexError, AttributeError):
        return None


def _names(test: Any) -> Tuple[str, ...]:
    code = getattr(test, "__code__", None) or getattr(type(test).__dict__.get("__call__"), "__code__", None)
    return tuple(code.co_names) if code is not None else ()
