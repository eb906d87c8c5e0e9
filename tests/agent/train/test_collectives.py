"""What gloo's threads hold of a collective when it is over."""

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from gpq_agent.train.process.agreement import Agreement, Proposal

from .driver import DEADLINE, FORKSERVER

CALLS = 300


def run(rank: int, meeting: str, answers: Any) -> None:
    """The main function of a replica. Answers with the threads in which the tensors of its collectives ended."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    endings: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_gather", "broadcast"):
            patch.setattr(dist, name, watched(getattr(dist, name), endings))
        agreement = Agreement(dist.new_group(backend="gloo"), rank, Proposal)
        for number in range(CALLS):
            agreement.place += 1
            agreement.gather([1.0, 2.0])
            agreement.broadcast({"number": number})
            agreement.step()
        agreement.drain()
    answers.put((len(endings), sum(thread != threading.get_ident() for thread in endings)))
    dist.barrier()
    dist.destroy_process_group()


def watched(collective: Callable[..., Any], endings: list[int]) -> Callable[..., Any]:
    def call(tensors: Any, *arguments: Any, **options: Any) -> Any:
        given = [*(tensors if isinstance(tensors, list) else [tensors]), *arguments]
        for tensor in given:
            weakref.finalize(tensor, lambda: endings.append(threading.get_ident()))
        return collective(tensors, *arguments, **options)

    return call


def test_no_thread_of_gloo_ends_a_tensor_of_an_agreement(tmp_path: Path) -> None:
    """At such a moment a forked worker of a DataLoader stands still for ever, see `runtime/process_group.py`. Before, it
    was every fifth tensor."""
    answers = FORKSERVER.Queue()
    replicas = [FORKSERVER.Process(target=run, args=(rank, str(tmp_path / "meeting"), answers)) for rank in range(2)]
    for replica in replicas:
        replica.start()
    try:
        for _ in replicas:
            ended, elsewhere = answers.get(timeout=DEADLINE)
            assert ended > CALLS
            assert elsewhere == 0
    finally:
        for replica in replicas:
            replica.join(DEADLINE)
            replica.kill()
