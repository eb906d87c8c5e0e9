"""Hooks that only look cost a loop nothing. gpq notices the others in the first pass that they change."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpq_agent.train.habits.gradients.gradient_hook import GradientHook, WatchedHook
from gpq_agent.train.habits.observer import JobView

from .test_stepping import Examples, job, prepared

Model = torch.nn.Module
FREEDOMS = {"accumulate", "split", "resize"}


def halve(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 0.5


def halve_in_place(gradient: torch.Tensor) -> None:
    gradient.mul_(0.5)


def halve_unseen(gradient: torch.Tensor) -> None:
    gradient.data.mul_(0.5)


def look(gradient: torch.Tensor) -> None:
    gradient.norm()


def look_and_return(gradient: torch.Tensor) -> torch.Tensor:
    return gradient


def on_parameters(hook: Callable[[torch.Tensor], Any]) -> Callable[[Model], None]:
    def put_on(model: Model) -> None:
        for item in model.parameters():
            item.register_hook(hook)

    return put_on


def after(act: Callable[[torch.Tensor], None]) -> Callable[[Model], None]:
    def put_on(model: Model) -> None:
        for item in model.parameters():
            item.register_post_accumulate_grad_hook(act)

    return put_on


def clip(parameter: Any) -> None:
    parameter.grad.clamp_(-0.02, 0.02)


def clip_unseen(parameter: Any) -> None:
    parameter.grad.data.clamp_(-0.02, 0.02)


def replace(parameter: Any) -> None:
    parameter.grad = parameter.grad.sign()


def clear(parameter: Any) -> None:
    parameter.grad = None


LOOKING: dict[str, Callable[[Any], Any]] = {
    "wandb.watch": on_parameters(look),
    "returns what it was given": on_parameters(look_and_return),
    "once it has arrived": after(lambda parameter: look(parameter.grad)),
}
CHANGING: dict[str, Callable[[Any], Any]] = {
    "returns": on_parameters(halve),
    "in place": on_parameters(halve_in_place),
    "in place, through .data": on_parameters(halve_unseen),
    "clips what has arrived": after(clip),
    "clips what has arrived, through .data": after(clip_unseen),
    "replaces what has arrived": after(replace),
    "clears what has arrived": after(clear),
}


def train(put_on: Callable[[Any], Any], *, inside: bool = False) -> tuple[set[str], list[int]]:
    """Return the freedoms that a loop lost, and the number of examples in each loop body.

    `inside`: the first body adds the hook.
    """
    this = job()
    loader = this.loader(Examples(48), batch_size=12, max_local_batch=6, fixed_batch=True)
    model, optimizer, _ = prepared(this)
    if not inside:
        put_on(model)
    sizes: list[int] = []
    for _ in this.epochs(1):
        for x, y in loader:
            if inside and not sizes:
                put_on(model)
            sizes.append(len(x))
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return this._engine.shape.freedoms.lost, sizes


@pytest.mark.parametrize("name", LOOKING)
def test_a_hook_that_only_looks_costs_nothing(name: str) -> None:
    assert train(LOOKING[name]) == (set(), 8 * [6])


@pytest.mark.parametrize("name", CHANGING)
def test_a_hook_that_changes_gradients_undoes_the_first_part_of_a_step(name: str) -> None:
    assert train(CHANGING[name]) == (FREEDOMS, [6, 12, 12, 12, 12])


def test_a_hook_added_in_the_first_loop_body_undoes_it_too() -> None:
    assert train(on_parameters(halve), inside=True) == (FREEDOMS, [6, 12, 12, 12, 12])


def test_a_hook_is_noticed_in_the_first_pass_that_it_changes() -> None:
    passes = 0

    def later(gradient: torch.Tensor) -> torch.Tensor | None:
        nonlocal passes
        passes += 1
        return gradient * 0.5 if passes > 3 else None

    _, sizes = train(lambda model: model[0].bias.register_hook(later))
    assert sizes == [6, 6, 6, 6, 12, 12]  # the current step continues as it began


def watcher() -> GradientHook:
    return GradientHook(JobView([], [], list, in_batch=lambda: True))


def test_handles_remove_watched_hooks() -> None:
    item: Any = torch.nn.Parameter(torch.ones(2))
    handles = [item.register_hook(halve), item.register_post_accumulate_grad_hook(clip)]
    watcher().watch([item])
    several = [item._backward_hooks, item._post_accumulate_grad_hooks]
    assert all(isinstance(hook, WatchedHook) for [hook] in map(dict.values, several))
    for handle in handles:
        handle.remove()
    assert several == [{}, {}]


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copied", [copy.copy, pickled])
def test_a_copy_of_a_hook_is_the_plain_hook(copied: Callable[[Any], Any]) -> None:
    item: Any = torch.nn.Parameter(torch.ones(2))
    item.register_hook(look)
    watcher().watch([item])
    [watched] = item._backward_hooks.values()
    assert copied(watched) is look


def test_a_hook_is_wrapped_once() -> None:
    item = torch.nn.Parameter(torch.ones(2))
    item.register_hook(look)
    hooks = watcher()
    hooks.watch([item])
    [(number, watched)] = item._backward_hooks.items()  # type: ignore[union-attr]
    hooks.watch([item])
    assert item._backward_hooks == {number: watched}


def test_gradients_that_are_not_finite_do_not_count_as_changed() -> None:
    """Training with too large a loss scale begins with such gradients."""
    hooks = watcher()
    item = torch.nn.Parameter(torch.ones(2))
    item.register_hook(look)
    hooks.watch([item])
    (item * torch.tensor([float("nan"), float("inf")])).sum().backward()
    assert not hooks.changed
