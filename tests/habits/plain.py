"""Plain PyTorch in place of gpq's six lines: the same examples in the same order, in one process, nothing wrapped.

This is what the script would train without gpq. Every cell is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gpq_agent import wire
from gpq_agent.train.data.order import permutation
from gpq_agent.train.process.rng import script_seed, seed_all
from torch.utils.data import DataLoader


class PlainLoader:
    """A DataLoader in the order of gpq's epochs."""

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, seed: int, options: dict[str, Any]) -> None:
        self.dataset = dataset
        self.counted = 0
        self.epoch = 0
        self._batch_size, self._shuffle, self._seed, self._options = batch_size, shuffle, seed, options

    def __len__(self) -> int:
        return len(self._loader())

    @property
    def steps_per_epoch(self) -> int:
        return len(self)

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader()
        self.epoch += 1
        for batch in loader:
            self.counted = len(batch[0])
            yield batch

    def _loader(self) -> DataLoader[Any]:
        options = dict(self._options)
        if "batch_sampler" in options:
            return DataLoader(self.dataset, **options)
        if "sampler" not in options:
            options["sampler"] = permutation(self._seed, self.epoch, len(self.dataset), self._shuffle).tolist()
        return DataLoader(self.dataset, self._batch_size, **options)


class PlainJob:
    """What a script can ask of a job, without gpq."""

    device = torch.device("cpu")
    rank = local_rank = attempt = 0
    replicas = nodes = 1
    resumed = False
    at_step = True

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.step = 0
        self._loader: PlainLoader | None = None
        self._optimizer: Any = None

    def loader(
        self,
        dataset: Any,
        batch_size: int,
        max_batch_size: int | None = None,
        max_local_batch: int | None = None,
        *,
        fixed_batch: bool = False,
        shuffle: bool = True,
        **options: Any,
    ) -> PlainLoader:
        self._loader = PlainLoader(dataset, batch_size, shuffle, self.seed, options)
        return self._loader

    def wrap(self, model: Any, **_: Any) -> Any:
        return model

    def prepare(self, model: Any, optimizer: Any, scheduler: Any = None, **_: Any) -> tuple[Any, Any, Any]:
        self._optimizer = first = optimizer[0] if isinstance(optimizer, (list, tuple)) else optimizer
        first.register_step_post_hook(self._stepped)
        return model, optimizer, scheduler

    def state(self, part: Any, *value: Any, **_: Any) -> Any:
        return value[0] if isinstance(part, str) else part

    def weigh(self, count: Any) -> None:
        """The whole batch is one piece, so its loss per token is right as it is."""

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        parameters = [item for group in self._optimizer.param_groups for item in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def log(self, **_: Any) -> None:
        pass

    def epochs(self, count: int) -> Iterator[int]:
        assert self._loader is not None
        for epoch in range(count):
            self._loader.epoch = epoch
            yield epoch

    @property
    def progress(self) -> wire.Progress:
        """As at the head of an epoch."""
        assert self._loader is not None
        return wire.Progress(self._loader.epoch, 0, 0, self.step, float(self.step), 0.0)

    @contextmanager
    def eval(self) -> Iterator[None]:
        yield

    def _stepped(self, *_: Any) -> None:
        self.step += 1


def init(**_: Any) -> PlainJob:
    seed = script_seed()
    seed_all(seed)
    return PlainJob(seed)
