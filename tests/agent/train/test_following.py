"""What the first passes of a loop show: tensors that it carries by itself, numbers that count; and what is none of these."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gpq_agent.train.following import NOTHING, PASSES, Following, tensors_within
from torch import nn

from .test_stepping import job, prepared

Body = Callable[[nn.Linear, int, dict[str, Any]], Any]


@pytest.fixture(autouse=True)
def _no_mode_is_left() -> Iterator[None]:
    yield
    assert torch._C._len_torch_dispatch_stack() == 0


def follow(body: Body, *, excused: bool = False, kept: tuple[Any, ...] = (), whole: int = 4) -> set[str]:
    """What is found in a loop of this body, which is given the model, the number of the pass and what it keeps. `whole`:
    examples of a step."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    stepping = [False]
    parts = (model, optimizer, *kept)
    following = Following(lambda: stepping[0], lambda: tensors_within(parts), lambda: list(model.parameters()))
    held: dict[str, Any] = {"kept": kept}
    found = set()
    for number in range(PASSES):
        held.update(batch=x(), index=torch.arange(4) + 4 * number)
        following.begin(4, whole)
        optimizer.zero_grad()
        loss = body(model, number, held)
        following.before_backward([loss])
        loss.backward()
        following.after_backward()
        if "after" in held:
            held["after"](model, number)
        stepping[0] = True
        optimizer.step()
        stepping[0] = False
        if "last" in held:
            held["last"](model)
        seen = following.end(excused=excused)
        found.update(name for name, value in seen._asdict().items() if value)
    assert following.over
    return found


def x() -> torch.Tensor:
    return torch.linspace(-1.0, 1.0, 12).view(4, 3)


def test_a_plain_loop_shows_nothing() -> None:
    assert follow(lambda model, number, held: model(x()).square().mean()) == set()


def test_a_tensor_made_anew_in_each_pass_is_carried() -> None:
    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        before = held.get("state", torch.zeros(4, 1))
        held["state"] = model(x()).detach()
        return (model(x()) - before).square().mean()

    assert follow(body) == {"tensor"}


def test_a_tensor_written_in_place_is_carried_through_any_view() -> None:
    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        bank = held.setdefault("bank", torch.zeros(6, 1))
        loss = (model(x()).mean() - bank.view(-1)[:3]).square().mean()
        bank[number % 6 : number % 6 + 1].copy_(model(x())[:1].detach())
        return loss

    assert follow(body) == {"tensor"}


def test_what_checkpoints_hold_is_not_carried() -> None:
    average = nn.Linear(3, 1)

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        loss = (model(x()) - average(x()).detach()).square().mean()
        with torch.no_grad():
            average.weight.lerp_(model.weight, 0.5)
        return loss

    assert follow(body) == {"tensor"}
    assert follow(body, kept=(average,)) == set()


def test_an_attribute_of_a_module_is_in_no_checkpoint() -> None:
    module = nn.Module()
    module.register_buffer("kept", torch.zeros(1))
    module.register_buffer("lost", torch.zeros(2), persistent=False)
    module.hidden = torch.zeros(3)
    assert [item.numel() for item in tensors_within([module])] == [1]


@pytest.mark.parametrize("made", [0, 1, 2])
def test_a_table_that_is_made_once_is_no_state(made: int) -> None:
    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        if number >= made:
            held.setdefault("table", torch.linspace(0.0, 1.0, 3).cos())
        return model(x() * held.get("table", 1)).square().mean()

    assert follow(body) == set()


def test_a_buffer_that_is_filled_anew_in_each_pass_is_no_state() -> None:
    buffer = torch.zeros(4, 3)

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        buffer.copy_(2 * x())
        return model(buffer.clone()).square().mean()

    assert follow(body) == set()


def test_gradients_of_the_pass_before_are_carried_into_the_next() -> None:
    last: list[torch.Tensor] = []

    def after(model: nn.Linear, number: int) -> None:
        grads = [item.grad for item in model.parameters() if item.grad is not None]
        for gradient, before in zip(grads, list(last), strict=False):
            gradient.add_(before, alpha=0.5)
        last[:] = grads

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        held["after"] = after
        return model(x()).square().mean()

    assert follow(body) == {"tensor"}


def test_memory_that_is_let_go_and_given_out_again_is_another() -> None:
    sums = [torch.zeros(()) for _ in range(500)]

    def last(model: nn.Linear) -> None:
        model.zero_grad()
        for place, before in enumerate(list(sums)):  # they come to lie where the gradients were
            sums[place] = before + 1.0

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        held["last"] = last
        return model(x()).square().mean()

    assert follow(body) == set()


def test_gradients_that_are_edited_in_their_own_pass_are_not() -> None:
    def after(model: nn.Linear, number: int) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        held["after"] = after
        return model(x()).square().mean()

    assert follow(body) == set()


COUNTED: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "a fraction": lambda loss, number: loss * (number / 10),
    "a whole number": lambda loss, number: loss * (number + 1),
    "an exponent": lambda loss, number: loss ** (1.0 + number / 10),
    "a tensor": lambda loss, number: loss * torch.tensor(number / 10),
    "a full one": lambda loss, number: loss * torch.full((), number / 10),
    "an alpha": lambda loss, number: torch.add(loss, loss, alpha=number / 10),
    "a clamp": lambda loss, number: loss.clamp(max=1e6 + number * 0.5),
}


@pytest.mark.parametrize("how", COUNTED)
def test_a_number_that_counts_is_noticed(how: str) -> None:
    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        return COUNTED[how](model(x()).square().mean() + 0.1, number)

    assert follow(body) == {"number"}
    assert follow(body, excused=True) == set()


def test_norms_of_as_many_gradients_as_examples_are_of_no_batch() -> None:
    def after(model: nn.Linear, number: int) -> None:
        grads = [item.grad for item in (*model.parameters(), *model.parameters()) if item.grad is not None]
        norm = torch.stack([each.norm() for each in grads]).norm()
        for each in grads:
            each.div_(norm)

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        held["after"] = after
        return model(held["batch"]).square().mean()

    assert follow(body) == set()


def test_a_number_on_gradients_is_noticed() -> None:
    def after(model: nn.Linear, number: int) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1 + number / 10)

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        held["after"] = after
        return model(x()).square().mean()

    assert follow(body) == {"number"}


def test_numbers_of_a_log_are_none_of_the_training() -> None:
    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        loss = model(x()).square().mean()
        held["total"] = held.get("total", torch.zeros(())) + loss.detach()
        held["mean"] = held["total"] / (number + 1)
        held["shown"] = torch.tensor(number / 10)
        return loss

    assert follow(body) == set()


@pytest.mark.parametrize("number", [float("-inf"), float("inf"), float("nan"), 0.0, 1e30])
def test_a_number_that_stays_is_none_whatever_it_is(number: float) -> None:
    def body(model: nn.Linear, count: int, held: dict[str, Any]) -> Any:
        scores = model(held["batch"]).squeeze(1).masked_fill(torch.tensor([True, False, False, False]), number)
        return scores[1:].square().mean() + 0 * scores.nan_to_num(0, 0, 0).mean()

    assert follow(body) == set()


@pytest.mark.parametrize("own", [False, True])
def test_random_numbers_of_a_generator_of_its_own_are_noticed(own: bool) -> None:
    generator = torch.Generator().manual_seed(0) if own else torch.default_generator

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        held["shown"] = torch.randn(3, generator=torch.Generator())
        return model(held["batch"] + torch.randn(4, 3, generator=generator)).square().mean()

    assert follow(body) == ({"generator"} if own else set())


def test_a_generator_that_is_made_or_seeded_in_each_pass_is_none_of_its_own() -> None:
    kept = torch.Generator()

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        new = torch.Generator().manual_seed(number)
        kept.manual_seed(number)
        noise = torch.randn(4, 3, generator=new) + torch.randn(4, 3, generator=kept)
        return model(held["batch"] + noise).square().mean()

    assert follow(body) == set()


def test_numbers_that_are_drawn_or_read_off_the_batch_do_not_count() -> None:
    def drawn(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        return model(x()).square().mean() * random.random()

    def read(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        scale = torch.rand(()).item()
        return scale * model(x()).square().mean() + (1.0 - scale) * model(-x()).square().mean()

    def shorter(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        size = (4, 2, 3, 4)[number]
        return model(x()[:size]).square().sum() / size

    assert [follow(each) for each in (drawn, read, shorter)] == [set(), set(), set()]


OF_THE_BATCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "its mean": lambda data: data - data.mean(dim=0),
    "its deviation": lambda data: data / (data.std(dim=0) + 1),
    "its largest": lambda data: data / data.abs().max(),
    "a norm": lambda data: data / data.norm(),
    "a rank": lambda data: data * (data > data.median(dim=0).values),
    "a share": lambda data: data * data.softmax(dim=0),
    "its neighbour": lambda data: data + 0.5 * data.roll(1, dims=0),
    "its opposite": lambda data: data * data.flip(0),
    "the first of it": lambda data: data[:2],
    "all but the last": lambda data: data.exp()[:-1] * 2,
    "every second": lambda data: data[::2].exp(),
    "pairs of it": lambda data: data[::2] - data[1::2],
    "halves of it": lambda data: 0.7 * data[:2].sin() + 0.3 * data[2:].exp(),
    "a quantile": lambda data: data.clamp(max=torch.quantile(data, 0.9).expand_as(data)),
}
OF_EACH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "its mean": lambda data: data - data.mean(dim=1, keepdim=True),
    "its largest": lambda data: data / data.abs().amax(dim=-1, keepdim=True),
    "a share": lambda data: data.softmax(dim=1),
    "its mirror image": lambda data: data + data.flip(1) + data.roll(1, -1),
    "a length": lambda data: data[:, : int((data > -2).sum(dim=1).max())],
    "chunks": lambda data: torch.cat([part.exp() for part in data.split(3)]),
    "chunks one by one": lambda data: torch.stack([data[place : place + 1].sin().squeeze(0) for place in range(4)]),
    "columns": lambda data: data[:, :2].exp() @ torch.ones(2, 3) - data[:, 1:] @ torch.ones(2, 3),
    "as many as there are": lambda data: data.cos()[: len(data)],
    "the first of it shown": lambda data: data * data[:2].mean().item() ** 0,
    "turned": lambda data: data.t()[:2].t() @ torch.ones(2, 3),
    "sorted by length": lambda data: data[torch.tensor([3, 1, 2, 4]).sort().indices],
}


@pytest.mark.parametrize("how", OF_THE_BATCH)
def test_what_is_of_a_batch_as_a_whole_is_noticed(how: str) -> None:
    assert follow(lambda model, number, held: model(OF_THE_BATCH[how](held["batch"])).square().mean()) == {"batch"}


@pytest.mark.parametrize("how", OF_EACH)
def test_what_is_of_each_example_is_not(how: str) -> None:
    assert follow(lambda model, number, held: model(OF_EACH[how](held["batch"])).square().mean()) == set()


@pytest.mark.parametrize("by", ["weights", "batch"])
def test_a_gradient_by_weights_is_of_a_batch_as_a_whole_and_one_by_the_batch_is_not(by: str) -> None:
    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        data = held["batch"].requires_grad_()
        loss = model(data).square().mean()
        (gradient,) = torch.autograd.grad(loss, model.weight if by == "weights" else data, retain_graph=True)
        if by == "weights":
            return loss * gradient.norm()
        return loss + model(data + 0.1 * gradient.sign()).square().mean()

    assert follow(body) == ({"batch"} if by == "weights" else set())


def test_rows_that_are_fewer_here_and_more_in_the_whole_step_are_picked() -> None:
    assert follow(lambda model, number, held: model(held["batch"][:6]).square().mean(), whole=8) == {"batch"}
    assert follow(lambda model, number, held: model(held["batch"][:6]).square().mean(), whole=6) == set()
    assert follow(lambda model, number, held: model(held["batch"][:99]).square().mean(), whole=8) == set()


def test_constants_are_no_batch_whatever_their_length() -> None:
    weights, rows = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.linspace(0.0, 1.0, 12).view(4, 3)

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        share = (weights.exp() / weights.exp().sum()).unsqueeze(1)
        return (share * model(x() + (rows - rows.mean(dim=0)))).square().mean()

    assert follow(body) == set()


def test_rows_picked_out_of_one_large_tensor_are_a_batch() -> None:
    everything = torch.linspace(-1.0, 1.0, 60).view(20, 3)

    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        batch = everything[held["index"]]
        return model(batch - batch.mean(dim=0)).square().mean()

    assert follow(body) == {"batch"}


def test_by_what_a_loss_is_divided_its_graph_tells() -> None:
    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        mask = (held["batch"][:, 0] > -0.5).float()
        return (mask * model(held["batch"]).square().squeeze(1)).sum() / mask.sum()

    def smoothed(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        scores = torch.cat([model(held["batch"]), -model(held["batch"])], dim=1)
        return nn.functional.cross_entropy(scores, held["index"] % 2, label_smoothing=0.1)

    assert [follow(body), follow(smoothed)] == [set(), set()]


def test_what_a_loss_itself_sums_is_told_by_its_graph() -> None:
    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        found = model(held["batch"])
        held["shown"] = (held["batch"].mean(), found.detach().mean())
        return found.square().sum() / 4

    assert follow(body) == set()


def test_a_pass_that_fails_in_the_middle_leaves_nothing_behind() -> None:
    model = nn.Linear(3, 1)
    following = Following(lambda: False, lambda: [], lambda: list(model.parameters()))
    following.begin(4)
    loss = model(x()).mean()
    following.before_backward([loss])  # and it raises
    assert following.end(excused=False) == NOTHING
    following.begin(4)
    following.end(excused=False)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_batch_drawn_ahead_of_its_step_is_told_in_loops_without_a_loader(ahead: bool) -> None:
    this = job()
    model, optimizer, _ = prepared(this)

    def draw() -> torch.Tensor:
        return torch.randn(4, 5) * 1.5

    batch = draw()
    for step in this.steps(6):
        if not ahead:
            batch = draw()
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (step + 1)
        optimizer.zero_grad()
        (model(this.share(batch)).square().mean() * (1.0 + step / 10)).backward()
        optimizer.step()
        if ahead:
            batch = draw()
    this._engine.freedoms.agree()
    assert set(this._engine.freedoms._known) == ({"own-tensor"} if ahead else set())


def test_leaving_a_loop_in_the_middle_follows_nothing_more() -> None:
    this = job()
    model, _, _ = prepared(this)
    for _ in this.steps(6):
        model(torch.ones(2, 5)).mean().backward()
        break
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_compiled_model_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(model: nn.Linear, number: int, held: dict[str, Any]) -> Any:
        return model(x()).square().mean() * (number / 10)

    frames = importlib.import_module("torch._dynamo.eval_frame")
    monkeypatch.setattr(frames, "cached_backends", {})
    assert follow(body) == {"number"}
    monkeypatch.setattr(frames, "cached_backends", {1: "eager"})
    assert follow(body) == set()
