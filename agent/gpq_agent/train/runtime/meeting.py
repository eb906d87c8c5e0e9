"""The replicas of one server meet in a file of the attempt's folder, which nobody else can open.

torch's own `env://` listens on a port of every interface and does not ask who connects. A script
that opens its process group itself meets in the file, too.
"""

import os
from typing import Any, Iterator, Tuple
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist

from gpq_agent import wire
from gpq_agent.train.internals import rendezvous_handlers

LOOPBACK = "127.0.0.1"


def meet_in_files() -> None:
    """From here on, `env://` means a file wherever the agent named one. Elsewhere it is torch's
    own."""
    handlers = rendezvous_handlers()
    over_network = handlers["env"]

    def by_environment(url: str, **options: Any) -> Iterator[Tuple[Any, int, int]]:
        if _is_of_this_attempt():
            yield _in_file(url)
        else:
            yield from over_network(url, **options)

    handlers["env"] = by_environment


def _is_of_this_attempt() -> bool:
    """Not what the script or torchrun starts with an address or a store of its own."""
    return (
        wire.ENV_MEETING in os.environ
        and os.environ.get("MASTER_ADDR") == LOOPBACK
        and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    )


def _in_file(url: str) -> Tuple[Any, int, int]:
    """(store, rank, number of replicas). There is one file for each port that a script may set."""
    words = parse_qs(urlparse(url).query)
    rank = int(words.get("rank", [os.environ["RANK"]])[0])
    replicas = int(words.get("world_size", [os.environ["WORLD_SIZE"]])[0])
    path = "{}.{}".format(os.environ[wire.ENV_MEETING], os.environ["MASTER_PORT"])
    store = dist.FileStore(path, replicas)  # type: ignore[attr-defined]
    return store, rank, replicas
