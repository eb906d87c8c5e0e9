"""Work on a list of items, in several processes on request. Results come in the order of the items.

Owns the processes and the signals: Ctrl-C and SIGTERM end all of them, and the parent reports it in
one line.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import FIRST_EXCEPTION, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait as wait_for
from typing import TypeVar

from gpq.errors import Interrupted

LOOK_SECONDS = 0.2  # between two looks at the progress of the other processes
ENDING = (signal.SIGINT, signal.SIGTERM)

Item = TypeVar("Item")
Result = TypeVar("Result")
# gets the share of each item that is done, 0 to 1, in their order
Progress = Callable[[Sequence[float]], None]
# work on one item, which reports the share that is done
Work = Callable[[Item, Callable[[float], None]], Result]


def work_on(
    items: Sequence[Item],
    work: Work[Item, Result],
    fallback: Callable[[Item], Result],
    processes: int = 1,
    progress: Progress | None = None,
) -> list[Result]:
    """The result of each item. `work`, its arguments and its results travel between processes.
    `fallback` gives the result of an item whose process was killed. An error in one of them ends
    all. So does a signal, as Interrupted."""
    if min(processes, len(items)) > 1:
        return _in_processes(items, work, fallback, min(processes, len(items)), progress)
    shares = [0.0] * len(items)
    results: list[Result] = []

    def stop(number: int) -> None:
        raise _Stop(number)

    try:
        with _hearing(stop):
            for index, item in enumerate(items):
                results.append(work(item, partial(_tell, shares, index, progress)))
                _tell(shares, index, progress, 1.0)
    except _Stop as stopped:
        raise _interruption(stopped.number, len(results), len(items)) from None
    return results


def _tell(shares: list[float], index: int, progress: Progress | None, share: float) -> None:
    shares[index] = share
    if progress is not None:
        progress(shares)


# -- signals ---------------------------------------------------------------------------------------


class _Stop(BaseException):
    """Code that catches errors must not catch this."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _interruption(number: int, completed_runs: int, count: int) -> Interrupted:
    name = signal.Signals(number).name
    if number == signal.SIGINT:
        name = "Ctrl-C"
    return Interrupted(
        number, f"ended by {name} after {completed_runs} of {count} runs. It shows none of them"
    )


@contextmanager
def _hearing(act: Callable[[int], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls `act`. The process ignores further ones until it has ended.
    A process that ignored one of them before still does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signum: signal.getsignal(signum) for signum in ENDING}
    active_signals = [
        signum for signum, handler in handlers.items() if handler not in (None, signal.SIG_IGN)
    ]

    numbers: list[int] = []

    def heard(number: int, _: object) -> None:
        numbers.append(number)
        for signum in active_signals:
            signal.signal(signum, signal.SIG_IGN)
        act(number)

    for signum in active_signals:
        signal.signal(signum, heard)
    try:
        yield
    finally:
        for signum in active_signals if not numbers else ():
            signal.signal(signum, handlers[signum])


# -- several processes -----------------------------------------------------------------------------

# in a worker: memory that it shares with the process that started it
_shares: MutableSequence[float] = []


def _in_processes(
    items: Sequence[Item],
    work: Work[Item, Result],
    fallback: Callable[[Item], Result],
    processes: int,
    progress: Progress | None,
) -> list[Result]:
    signals: list[int] = []
    with _hearing(signals.append):
        # it raises nothing, so the pool is never half started or half ended
        context = multiprocessing.get_context("spawn")
        shares = context.Array("d", len(items), lock=False)
        old_children = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(
            processes, mp_context=context, initializer=_prepare, initargs=(shares,)
        )
        try:
            # Processes that start now never get Ctrl-C. We end them, by SIGTERM if necessary.
            old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = [
                    pool.submit(_work, work, item, index) for index, item in enumerate(items)
                ]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            _await(futures, signals, shares, progress)
            if signals:
                completed_runs = sum(
                    future.done() and not future.cancelled() and future.exception() is None
                    for future in futures
                )
                raise _interruption(signals[0], completed_runs, len(items))
            return [
                fallback(item) if future.exception() is not None else future.result()
                for future, item in zip(futures, items, strict=True)
            ]
        except BaseException:
            for child in set(multiprocessing.active_children()) - old_children:
                child.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _await(
    futures: Sequence[Future[Result]],
    signals: Sequence[int],
    shares: Sequence[float],
    progress: Progress | None,
) -> None:
    """Waits until all have ended or a signal has come. Raises the error of the work itself."""
    pending_futures = set(futures)
    while pending_futures and not signals:
        completed_futures, pending_futures = wait(pending_futures, LOOK_SECONDS, FIRST_EXCEPTION)
        for future in completed_futures:
            error = future.exception()
            # a killed process affects only items that had not ended
            if error is not None and not isinstance(error, BrokenExecutor):
                raise error
        if progress is not None:
            progress(list(shares))


def _prepare(shares: MutableSequence[float]) -> None:
    """In a worker: where to report progress. It does not outlive the process that started it."""
    global _shares
    _shares = shares
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            wait_for([parent.sentinel])
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _work(work: Work[Item, Result], item: Item, index: int) -> Result:
    def watch(share: float) -> None:
        _shares[index] = share

    result = work(item, watch)
    watch(1.0)
    return result
