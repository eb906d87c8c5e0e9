"""Only for `gpq check`: removes from a run what may depend on its shape, namely the luck of
augmentation and dropout inside kernels. Computes everything in full precision.

Both are right under gpq, as they are under DistributedDataParallel, but no two shapes draw the
same. keyed.py handles what a loop body draws.

In half precision and in TF32, the parts of a batch are rounded differently from the whole, by more
than an error of the loop may cause. A script that fails in full precision runs as it is.
"""

import contextlib
import functools
import math
import os
import warnings
from operator import attrgetter
from typing import Any, Callable, Iterator, List, Sequence, Tuple, TypeVar

import torch
from torch.nn import functional
from torch.utils.data import Dataset

from gpq_agent.train import internals
from gpq_agent.train.data.batches import whole_groups
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.process.rng import generator_states, seed_host, set_generators, stable_seed

DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip
ATTENTION = "scaled_dot_product_attention"
Item = TypeVar("Item")

# The settings in torch.backends with which a script chooses the precision of single precision, by
# version.
PLACES = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
FULL = ("ieee", "none")
HALF = (torch.bfloat16, torch.float16)
WARNINGS = (
    ".*does not have a deterministic implementation",
    ".*not deterministic because it uses CuBLAS",
)


def plain_attention() -> None:
    """Attention with dropout uses the plain formula in this process from now on, because fused
    kernels draw inside."""
    attention: Callable[..., Any] = getattr(functional, ATTENTION)

    @functools.wraps(attention)
    def plain(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> Any:
        if not dropout_p:
            return attention(query, key, value, attn_mask, dropout_p, is_causal, **more)
        if more.get("enable_gqa"):
            key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        scale = more.get("scale")
        scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
        weights = query @ key.transpose(-2, -1) * scale
        if is_causal:
            past = weights.new_ones(weights.shape[-2:], dtype=torch.bool).tril()
            weights = weights.masked_fill(~past, -math.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            weights = weights.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            weights = weights + attn_mask
        # A row that may look at nothing gets zeros.
        blind = (weights == -math.inf).all(dim=-1, keepdim=True)
        weights = torch.softmax(weights.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)
        return functional.dropout(weights, dropout_p) @ value

    setattr(functional, ATTENTION, plain)


class Dropout:
    """The function of torch.nn.functional, and so of its modules, from now on in this process.
    `off`: it drops nothing, if the check cannot control what is drawn."""

    def __init__(self) -> None:
        self.off = True
        for name in DROPOUTS:
            setattr(functional, name, self._around(getattr(functional, name)))

    def _around(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)  # a function, which a copy of a model shares
        def dropout(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return input if self.off else plain(input, *args, **kwargs)

        return dropout


def still(model: torch.nn.Module) -> bool:
    """No dropout between the layers of recurrent modules, because kernels draw it. Was there
    any?"""
    had_dropout = False
    for module in model.modules():
        if isinstance(module, torch.nn.RNNBase) and module.dropout:
            module.dropout, had_dropout = 0.0, True
    return had_dropout


def torch_generators() -> List[torch.Generator]:
    """The generators that draw if none is given."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.is_available() and started
    return [torch.default_generator, *(torch.cuda.default_generators if cuda else ())]


def generators() -> List[Any]:
    """The states of all generators that a script may draw from, torch's on the CPU first."""
    return [state for _, state in generator_states()]


def has_moved(before: List[Any], after: List[Any]) -> bool:
    """Was a random number drawn between the two?"""
    return not _same(tuple(before), tuple(after))


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second))
    return bool((first == second).all()) if hasattr(first, "all") else bool(first == second)


def torch_states() -> List[torch.Tensor]:
    return [generator.get_state() for generator in torch_generators()]


def put_back_torch(states: Sequence[torch.Tensor]) -> None:
    for generator, state in zip(torch_generators(), states):
        generator.set_state(state)


def seed(value: int) -> None:
    """All generators of this process start at `value`."""
    seed_torch(value)
    seed_host(value)


def seed_torch(value: int) -> None:
    for generator in torch_generators():
        generator.manual_seed(value)


@contextlib.contextmanager
def fixed_seed(value: int) -> Iterator[None]:
    """Inside, all generators of this process start at `value`. Afterwards they are as before."""
    states = generator_states()
    seed(value)
    try:
        yield
    finally:
        set_generators(states)


class SeededData(Dataset):  # type: ignore[type-arg]
    """The script's data set, asked for (epoch, index). What it draws depends only on these two,
    also in a worker."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __getitem__(self, place: Tuple[int, int]) -> Any:
        epoch, index = place
        with fixed_seed(stable_seed(epoch, index)):
            return self._data[index]

    def __len__(self) -> int:
        return len(self._data)

    def __getattr__(self, name: str) -> Any:
        # Workers read the script's own attributes from their data set, except __getitems__, which
        # does not know the epoch.
        if name.startswith("__") or name == "_data":
            raise AttributeError(name)
        return getattr(self._data, name)


class EpochIndexSampler:
    """A batch sampler that adds the epoch to each example. `reverse` and `rotate`: the order within
    each batch."""

    def __init__(self, sampler: GlobalSampler, reverse: bool, rotate: bool = False) -> None:
        self._sampler = sampler
        self._reverse = reverse
        self._rotate = rotate

    def __iter__(self) -> Iterator[List[Tuple[int, int]]]:
        epoch = self._sampler.cursor.epoch
        for indices in self._sampler:
            yield [(epoch, index) for index in self.rows(indices)]

    def rows(self, indices: Sequence[int]) -> List[int]:
        """The examples of a micro-batch in the order of their rows."""
        whole, group = len(indices), self._sampler.group
        if group:  # a turn of whole groups of batch norm leaves them together
            whole = whole_groups(whole, group) * group
        return [*arrange(indices[:whole], self._reverse, self._rotate), *indices[whole:]]


def arrange(batch: Sequence[Item], reverse: bool, rotate: bool) -> List[Item]:
    """Examples in the order of their rows. `reverse`: the last first. `rotate`: before that, the
    second half first."""
    half = len(batch) // 2 if rotate else 0
    turned_batch = [*batch[half:], *batch[:half]]
    return turned_batch[::-1] if reverse else turned_batch


def copies(model: torch.nn.Module, registered: Sequence[torch.nn.Module]) -> List[torch.nn.Module]:
    """Modules of this process that look like copies of the model and that nothing keeps."""
    import gc

    kinds = (torch.optim.swa_utils.AveragedModel, type(model))
    own = {id(module) for part in registered for module in part.modules()}
    candidates = [item for item in gc.get_objects() if type(item) in kinds and id(item) not in own]
    pairs = [(outer, module) for outer in candidates for module in outer.modules()]
    inner = {id(module) for outer, module in pairs if module is not outer}
    return [item for item in candidates if id(item) not in inner]


class FullPrecision:
    """One per process, permanent. `epsilon`: of the coarsest half type that autocast used."""

    def __init__(self, exact: bool = True) -> None:
        """Without `exact`, autocast and TF32 stay as the script sets them."""
        self._exact = exact
        self._autocast = not exact  # as the script sets it
        self.epsilon = 0.0
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to repeat
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        for message in WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        plain: Callable[[Any], Any] = torch.amp.autocast_mode.autocast.__enter__

        @functools.wraps(plain)
        def enter(region: Any) -> Any:
            if not self._autocast:
                return internals.enter_without_effect(region, plain)
            result = plain(region)
            dtype = torch.get_autocast_dtype(region.device)
            if torch.is_autocast_enabled(region.device) and dtype in HALF:
                self.epsilon = max(self.epsilon, torch.finfo(dtype).eps)
            return result

        torch.amp.autocast_mode.autocast.__enter__ = enter  # type: ignore[method-assign]
        self.renew()

    def renew(self) -> None:
        """Whatever the script has set since."""
        torch.backends.cudnn.benchmark = False
        torch.set_deterministic_debug_mode("warn")
        if not self._exact:
            return
        places = []
        for name in PLACES:
            with contextlib.suppress(AttributeError):  # an older torch
                place = attrgetter(name)(torch.backends)
                places += [place] if hasattr(place, "fp32_precision") else []
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        if places:
            is_reduced = any(place.fp32_precision not in FULL for place in places)
        else:
            is_reduced = matmul.allow_tf32 or cudnn.allow_tf32
        if is_reduced:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # names that some versions no longer accept
                torch.set_float32_matmul_precision("highest")
                matmul.allow_tf32 = cudnn.allow_tf32 = False
                for place in places:
                    place.fp32_precision = "ieee"

    def give_up(self) -> None:
        """Weights are in half precision, so autocast stays as the script sets it. Without it the
        types would not match."""
        self._autocast = True
