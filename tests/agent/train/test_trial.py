"""Losses that are no mean over examples are told in every shape that divides a batch, and other losses never."""

from __future__ import annotations

import gc
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpq_agent import wire
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.prove.trial import FEW, dealings
from torch.nn import functional

from .test_gradients import replicas_of

BATCH = 24
# Replicas, and options of job.loader(). The last is split in its sampled steps.
SHAPES: dict[str, tuple[int, dict[str, Any]]] = {
    "accumulating": (1, {"fixed_batch": True, "max_local_batch": 6}),
    "split": (1, {"max_batch_size": BATCH}),
    "two replicas": (2, {"fixed_batch": True}),
    "two replicas, accumulating": (2, {"fixed_batch": True, "max_local_batch": 5}),
}
Loss = Callable[[Job, torch.Tensor, torch.Tensor], torch.Tensor]


class Sentences(torch.utils.data.Dataset[Any]):
    """Sentences of 2 to 9 words out of 7, each with the words that follow. -100 where there is none."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        self.words = torch.randint(0, 7, (10 * BATCH, 10), generator=generator)
        self.lengths = torch.randint(2, 10, (len(self.words),), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words, target = self.words[index, :-1], self.words[index, 1:].clone()
        target[self.lengths[index] :] = -100
        return words, target


class Blurred(Sentences):
    """Augmented: with other words in some places."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words, target = super().__getitem__(index)
        return torch.where(torch.rand(len(words)) < 0.2, random.randrange(7), words), target


class Reader(torch.nn.Module):
    """Scores of the seven words in each place. `share`: that dropout takes."""

    def __init__(self, share: float) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed, self.inner, self.head = torch.nn.Embedding(7, 12), torch.nn.Linear(12, 12), torch.nn.Linear(12, 7)
        self.drop = torch.nn.Dropout(share)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.drop(self.inner(self.embed(words)).tanh()))
        return scores


def _each(scores: torch.Tensor, target: torch.Tensor, **more: Any) -> torch.Tensor:
    """The loss of each place, 0 without a target."""
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none", **more).view_as(target)


def _by_example(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return _each(scores, target).sum(dim=1) / (target >= 0).sum(dim=1)


def ignored_targets(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def masked_by_hand(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    mask = (target >= 0).float()
    return (_each(scores, target) * mask).sum() / mask.sum()


def picked_by_index(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores[target >= 0], target[target >= 0])


def masked_binary(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    mask = target >= 0
    return functional.binary_cross_entropy_with_logits(scores[..., 0][mask], (target[mask] == 0).float())


def class_weights(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    weight = torch.arange(1.0, 8.0)
    return functional.cross_entropy(scores[:, 0], target[:, 0], weight=weight)


def over_positives(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.softplus(-scores[:, 0, 0])[target[:, 0] < 3].mean()


def contrastive(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    first, second = (functional.normalize(part.flatten(1), dim=1) for part in (scores[:, :4], scores[:, 4:8]))
    return functional.cross_entropy(first @ second.T / 0.1, torch.arange(len(first)))


def neighbours_ranked(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    places = scores[:, 0, 0]
    return functional.softplus(places[1:] - places[:-1]).mean()


def undivided(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return _by_example(scores, target).sum()


def of_examples(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return _by_example(scores, target).mean()


def weighed(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    job.weigh(int((target >= 0).sum()))
    return ignored_targets(job, scores, target)


def noisy(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return _by_example(scores + 0.5 * torch.randn_like(scores), target).mean()


WRONG: tuple[Loss, ...] = (
    ignored_targets, masked_by_hand, picked_by_index, masked_binary, class_weights, over_positives, contrastive,
    neighbours_ranked, undivided,
)  # fmt: skip
RIGHT: tuple[Loss, ...] = (of_examples, weighed, noisy)


def habits(loss: Loss, shape: str, folder: Path, rank: int = 0, half: bool = False, **options: Any) -> set[str]:
    """What an epoch shows. With dropout and augmentation. `half`: with autocast."""
    gc.collect()  # what an earlier job leaves is not this one's
    replicas, division = SHAPES[shape]
    environment = Environment(rank=rank, replicas=replicas, launched=replicas > 1, run_dir=str(folder))
    job = Job(environment, torch.device("cpu"), 0, {})
    loader = job.loader(Blurred(), batch_size=BATCH, **division, **options)
    model = job.wrap(Reader(0.3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    for _ in job.epochs(1):
        for words, target in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                scores = model(words)
            loss(job, scores.float(), target).backward()
            optimizer.step()
    return set(job._engine.shape.freedoms._agreed)


def replica(rank: int, count: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=count)
    answers = {
        f"{loss.__name__}, {shape}": sorted(habits(loss, shape, Path(folder), rank))
        for loss in WRONG + RIGHT
        for shape in SHAPES
        if SHAPES[shape][0] == count
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if SHAPES[shape][0] == 1])
@pytest.mark.parametrize("loss", WRONG + RIGHT, ids=lambda loss: loss.__name__)
def test_one_replica_tells_a_loss_that_is_no_mean_over_examples(loss: Loss, shape: str, tmp_path: Path) -> None:
    assert habits(loss, shape, tmp_path) == ({"mean"} if loss in WRONG else set())


def test_two_replicas_tell_a_loss_that_is_no_mean_over_examples(tmp_path: Path) -> None:
    with replicas_of(2, tmp_path, replica) as processes:
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0]
    for rank in range(2):
        answers = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(answers) == 2 * len(WRONG + RIGHT)
        wrong = {loss.__name__ for loss in WRONG}
        assert {
            name: found for name, found in answers.items() if found != ["mean"] * (name.split(",")[0] in wrong)
        } == {}


def mixed(job: Job, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """With other examples of the batch, drawn at random. No trial can tell what that is."""
    return _by_example(scores + scores[torch.randperm(len(scores))], target).mean()


@pytest.mark.parametrize(
    ("loss", "options", "told"),
    [
        (ignored_targets, {"num_workers": 1}, {"mean"}),  # whose worker reads the examples
        (of_examples, {"num_workers": 1}, set()),
        (undivided, {"half": True}, {"mean"}),
        (of_examples, {"half": True}, set()),
        (mixed, {}, set()),
    ],
)
def test_a_trial_is_as_the_training(loss: Loss, options: dict[str, Any], told: set[str], tmp_path: Path) -> None:
    assert habits(loss, "accumulating", tmp_path, **options) == told


class Run:
    """An epoch of a loop that averages its weights and keeps its gradients, without a random number."""

    def __init__(self, folder: str, division: dict[str, Any], fewest: int = 0) -> None:
        """`folder`: without it there is no trial. `fewest`: examples in a batch with which the loop works."""
        gc.collect()
        torch.manual_seed(0)
        environment = Environment(checkpoint_dir=folder or None)
        self.job = Job(environment, torch.device("cpu"), 0, {})
        # Not from the start, because the variables of its run would stay in this process.
        self.job._engine.runtime.environment = environment._replace(run_dir=folder or None)
        loader = self.job.loader(Sentences(), batch_size=BATCH, **division)
        self.model = self.job.wrap(Reader(0.0))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.job.prepare(self.model, optimizer)
        self.average = [item.detach().clone() for item in self.model.parameters()]
        self.sizes: list[int] = []
        for _ in self.job.epochs(1):
            for words, target in loader:
                self.sizes.append(len(words))
                if len(words) < fewest:
                    raise IndexError(f"{len(words)} examples are too few")
                of_examples(self.job, self.model(words), target).backward()
                optimizer.step()
                for parameter in self.model.parameters():
                    parameter.grad.mul_(0.5)
                torch._foreach_lerp_(self.average, [item.detach() for item in self.model.parameters()], 0.1)

    def trained(self) -> list[torch.Tensor]:
        gradients = [item.grad for item in self.model.parameters()]
        return [*self.model.parameters(), *self.average, *gradients, torch.get_rng_state()]


@pytest.mark.parametrize(
    ("most", "step", "trial"),
    [
        (6, [6, 6, 6, 6], [4, 4, 3, 3, 2]),
        (3, 8 * [3], [2, 3, 3, 3, 3, 2]),
        (2, 12 * [2], 8 * [2]),
        (1, 24 * [1], []),
        (12, [12, 12], [12, 4, 4, 4]),
    ],
)
def test_a_trial_costs_one_step_at_most_and_leaves_no_trace(
    most: int, step: list[int], trial: list[int], tmp_path: Path
) -> None:
    division = {"fixed_batch": True, "max_local_batch": most}
    run, plain = Run(str(tmp_path), division), Run("", division)
    assert plain.sizes == 10 * step
    assert run.sizes == step + trial + 9 * step
    assert sum(trial) <= max(sum(step), 2 * FEW)
    assert all(torch.equal(*pair) for pair in zip(run.trained(), plain.trained(), strict=True))


def test_a_loop_that_fails_in_a_trial_starts_again_and_keeps_its_steps_whole(tmp_path: Path) -> None:
    division = {"fixed_batch": True, "max_local_batch": 6}
    with pytest.raises(IndexError) as caught:
        Run(str(tmp_path), division, fewest=3)
    job = next(item for item in gc.get_objects() if isinstance(item, Job))
    job._engine.failures.failed(caught.value)
    assert "on a batch that gpq made" in wire.read_json(str(tmp_path / wire.EXCUSED))["note"]
    record = wire.read_json(str(tmp_path / "gpq" / "habits.json"))
    assert record == {"habits": {"part-error": "IndexError with 2 of 24 examples"}}


@pytest.mark.parametrize(
    ("count", "most"), [(FEW, 2), (FEW, 3), (FEW, 4), (FEW, 7), (FEW, 8), (FEW, 40), (9, 9), (20, 32), (32, 32)]
)
def test_both_ways_deal_each_example_once_and_none_alone(count: int, most: int) -> None:
    for way in dealings(count, most):
        assert sorted(place for places in way for place in places) == list(range(count))
        assert all(2 <= len(places) <= most for places in way)
