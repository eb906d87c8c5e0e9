"""Random numbers of a loop body under `gpq check`: an example draws the same numbers however the batch is split."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy
import pytest
import torch
from gpq_agent.train import internals
from gpq_agent.train.prove.determinism import (
    ATTENTION,
    DROPOUTS,
    Dropout,
    arrange,
    generators,
    has_moved,
    plain_attention,
    still,
)
from gpq_agent.train.prove.keyed import Keyed
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DATA = torch.randn(20, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
WHOLE = [7, 3, 11, 0, 5, 9, 2]
PARTS = [[7, 3, 11], [0], [5, 9, 2]]
Draw = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def attention() -> Iterator[None]:
    """Use the plain formula for attention until the test ends."""
    own = {name: getattr(functional, name) for name in (ATTENTION, *DROPOUTS)}
    plain_attention()
    yield
    for name, function in own.items():
        setattr(functional, name, function)


def attended(x: torch.Tensor, **how: object) -> torch.Tensor:
    heads = x.reshape(len(x), 2, 6, 2)
    return functional.scaled_dot_product_attention(heads, heads + 1, heads, dropout_p=0.4, **how)  # type: ignore[arg-type]


def latent(x: torch.Tensor) -> torch.Tensor:
    """The draw of a variational autoencoder."""
    layer = nn.Linear(6, 12, dtype=torch.float64)
    with torch.no_grad():
        for item in layer.parameters():
            item.copy_(torch.linspace(-1, 1, item.numel(), dtype=torch.float64).reshape(item.shape))
    mean, deviation = layer(x).chunk(2, dim=-1)
    return mean + torch.randn_like(deviation) * deviation.exp()


def behind_the_time(x: torch.Tensor) -> torch.Tensor:
    return functional.dropout(x.transpose(0, 1), 0.5).transpose(0, 1)


def in_place(x: torch.Tensor) -> torch.Tensor:
    drawn = torch.empty(len(x), 5, dtype=torch.float64)
    return torch.cat(
        [drawn.uniform_(2, 3) * 1, drawn.normal_() * 1, drawn.bernoulli_(0.5) * 1, drawn.exponential_() * 1], dim=1
    )


def drawn_once_more(x: torch.Tensor) -> torch.Tensor:
    """Draws after another draw that is the same in all micro-batches, however many numbers that one takes."""
    torch.randperm(len(x))
    return torch.rand(len(x), 3)


DRAWS: dict[str, Draw] = {
    "dropout": lambda x: functional.dropout(x, 0.5),
    "channels": lambda x: functional.dropout1d(x, 0.5),
    "alpha": lambda x: functional.alpha_dropout(x, 0.5, training=True),
    "native": lambda x: torch.cat([each.double() for each in torch.native_dropout(x, 0.5, True)], dim=1),
    "noise": torch.randn_like,
    "times": lambda x: torch.randint(0, 1000, (len(x),)),
    "by length": lambda x: torch.rand(len(x), 3, dtype=torch.float64),
    "out": lambda x: torch.rand(len(x), 3, out=torch.empty(len(x), 3)),
    "several rows": lambda x: functional.dropout(x.reshape(-1, 6), 0.5).reshape(x.shape),
    "normal": lambda x: torch.normal(x, 2 * torch.ones_like(x)),
    "normal of a size": lambda x: torch.normal(0.0, 1.0, (len(x), 2)),
    "classes": lambda x: torch.multinomial(x[:, 0].exp(), 3),
    "gumbel": lambda x: functional.gumbel_softmax(x),
    "attention": attended,
    "causal attention": lambda x: attended(x, is_causal=True, scale=0.3),
    "masked attention": lambda x: attended(x, attn_mask=torch.ones(6, 6).tril(2).bool()),
    "latent": latent,
    "behind the time": behind_the_time,
    "in place": in_place,
    "last channel": lambda x: functional.dropout(x[..., None].contiguous(memory_format=torch.channels_last), 0.5),
    "once more": drawn_once_more,
}  # fmt: skip


def body(draw: Draw, examples: Sequence[int], *, epoch: int = 1, start: int = 40) -> dict[int, torch.Tensor]:
    """The result for each example."""
    mode = Keyed()
    mode.begin(epoch, start, examples)
    found = draw(DATA[list(examples)])
    mode.end()
    assert len(found) == len(examples)
    return dict(zip(examples, found, strict=True))


@pytest.mark.parametrize("name", DRAWS)
def test_an_example_draws_the_same_wherever_it_is_in_the_batch(name: str) -> None:
    draw = DRAWS[name]
    before = generators()
    whole = body(draw, WHOLE)
    for batches in (PARTS, [WHOLE[::-1]], [[each] for each in WHOLE]):
        for batch in batches:
            for example, found in body(draw, batch).items():
                torch.testing.assert_close(found, whole[example], rtol=1e-12, atol=1e-12)
    assert not torch.equal(whole[7], whole[3])
    for other in (body(draw, WHOLE, epoch=2), body(draw, WHOLE, start=80)):
        assert any(not torch.equal(other[example], whole[example]) for example in WHOLE)
    assert not has_moved(before, generators())


def test_two_draws_in_a_loop_body_differ() -> None:
    found = body(lambda x: torch.stack([torch.rand(len(x), 4), torch.rand(len(x), 4)], dim=1), WHOLE)
    assert not torch.equal(found[7][0], found[7][1])


def test_draws_without_a_row_per_example_are_equal_and_reported() -> None:
    weight = nn.Parameter(torch.zeros(12, 2))
    draws: list[Callable[[int], object]] = [
        lambda count: torch.rand(()).item(),
        lambda count: torch.rand(1).item(),
        lambda count: torch.randn_like(weight).tolist(),
        lambda count: random.random(),
        lambda count: numpy.random.rand(),
        lambda count: torch.randperm(5).tolist(),
        lambda count: torch.rand(5, out=torch.empty(0)).tolist(),
        lambda count: torch.multinomial(torch.ones(12), 2).tolist(),
    ]
    for draw in draws:
        mode = Keyed()
        found = []
        for examples in ([1, 2, 3, 4, 5], [6, 7, 8], [9]):
            mode.begin(0, 0, examples)
            found.append(draw(len(examples)))
            assert mode.end()
        assert found[0] == found[1] == found[2]


def test_the_dimension_of_examples_is_found() -> None:
    """Also if a time dimension is as long as the micro-batch."""
    whole = body(behind_the_time, WHOLE)  # of length 4
    mode = Keyed()
    for examples in ([2, 9, 5], [7, 3, 11, 0]):
        mode.begin(1, 40, examples)
        found = behind_the_time(DATA[examples])
        assert not mode.end()
        assert all(torch.equal(each, whole[example]) for example, each in zip(examples, found, strict=True))


def test_keyed_draws_do_not_count_as_random() -> None:
    mode = Keyed()
    for examples in (WHOLE, [1]):
        mode.begin(0, 0, examples)
        functional.dropout(DATA[examples], 0.5)
        torch.nn.functional.scaled_dot_product_attention(*3 * [DATA[examples]])
        torch.rand(2, generator=torch.Generator())
        assert not mode.end()
    mode.begin(0, 0, [])  # an empty micro-batch does not count
    torch.rand(5)
    assert not mode.end()
    assert not mode.end()


def test_a_generator_of_the_script_is_left_alone() -> None:
    plain = torch.rand(7, generator=torch.Generator().manual_seed(3))
    found = body(lambda x: torch.rand(7, generator=torch.Generator().manual_seed(3)), WHOLE)
    assert torch.equal(torch.stack(list(found.values())), plain)
    torchs = body(lambda x: torch.rand(len(x), generator=torch.default_generator), WHOLE)
    assert torchs[7] == body(lambda x: torch.rand(len(x), generator=torch.default_generator), [3, 7])[7]


def test_outside_a_loop_body_nothing_changes() -> None:
    before = generators()
    mode = Keyed()
    mode.begin(0, 0, WHOLE)
    first = torch.rand(7)
    mode.begin(0, 0, WHOLE)  # the previous body did not end
    assert torch.equal(first, torch.rand(7))
    mode.end()
    assert internals.current_dispatch_mode() is None
    assert not has_moved(before, generators())
    torch.manual_seed(3)
    plain = torch.rand(7)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(7), plain)


def test_a_mode_that_the_script_has_not_left_stays() -> None:
    class Own(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    mode, own = Keyed(), Own()
    mode.begin(0, 0, WHOLE)
    own.__enter__()
    mode.end()
    assert internals.current_dispatch_mode() is own
    before = generators()
    torch.manual_seed(4)
    plain = torch.rand(7)  # gpq keys nothing now
    mode.begin(0, 0, WHOLE)
    inside = torch.rand(7)
    mode.end()
    own.__exit__(None, None, None)
    mode.begin(0, 0, WHOLE)
    assert torch.equal(torch.rand(7), inside)
    mode.end()
    assert internals.current_dispatch_mode() is None
    torch.set_rng_state(before[0])
    torch.manual_seed(4)
    assert torch.equal(torch.rand(7), plain)


def test_activation_checkpointing_draws_the_same_numbers_again() -> None:
    gradients = []
    for again in (False, True):
        mode = Keyed()
        x = DATA[WHOLE].requires_grad_()
        mode.begin(0, 0, WHOLE)
        loss = checkpoint(functional.dropout, x, 0.5, use_reentrant=False) if again else functional.dropout(x, 0.5)
        loss.square().sum().backward()
        mode.end()
        assert x.grad is not None
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_compiled_code_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "is_compiled", lambda: True)
    mode = Keyed()
    mode.begin(0, 0, WHOLE)
    assert internals.current_dispatch_mode() is None
    torch.rand(7)
    assert mode.end()


def test_plain_attention_equals_that_of_torch() -> None:
    query, key, value = torch.randn(3, 2, 4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mask = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for how in (
        {}, {"is_causal": True}, {"scale": 0.2}, {"attn_mask": mask}, {"attn_mask": mask > 0.5},
        {"key": key[:, :2], "value": value[:, :2], "enable_gqa": True},
    ):  # fmt: skip
        given = {"query": query, "key": key, "value": value, **how}
        plain = functional.scaled_dot_product_attention(**given)  # type: ignore[arg-type]
        drops = functional.scaled_dot_product_attention(**given, dropout_p=1e-12)  # type: ignore[arg-type]
        torch.testing.assert_close(drops, plain)


def test_rows_are_arranged_like_the_batch() -> None:
    assert arrange([1, 2, 3, 4, 5], True, False) == [5, 4, 3, 2, 1]
    assert arrange([1, 2, 3, 4, 5], False, True) == [3, 4, 5, 1, 2]
    assert arrange([1, 2, 3, 4, 5], True, True) == [2, 1, 5, 4, 3]


def test_recurrent_modules_lose_their_dropout() -> None:
    layers = nn.ModuleList([nn.LSTM(2, 2, 2, dropout=0.5), nn.GRU(2, 2)])
    assert still(layers)
    assert not still(layers)


def test_dropout_is_off_until_the_check_turns_it_on() -> None:
    dropout, x = Dropout(), torch.ones(4, 100)
    assert torch.equal(nn.Dropout(0.5)(x), x)
    heads = x.reshape(4, 1, 10, 10)
    attention = functional.scaled_dot_product_attention
    torch.testing.assert_close(attention(heads, heads, heads, dropout_p=0.5), heads)
    dropout.off = False
    assert not torch.equal(nn.Dropout(0.5)(x), x)
    assert nn.Dropout(0.5).eval()(x) is x
