"""By what a loss divides: read off the graph of a backward pass, so that a mean over tokens is told from one over examples.

Reads what autograd keeps for its own use, by names that may change with torch: what it does not know, it leaves out. Waits
for the device, so it is asked in the first micro-batches only.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from .coupling import couples, node_name
from .internals import saved, saves

MOST_NODES = 200
TOLERANCE = 1e-6
MOST_SIZES = 8
PRODUCTS = ("DotBackward", "MmBackward", "MvBackward", "BmmBackward")  # a weighted sum, where one number comes out
ON_WEIGHTS = ("PowBackward", "AbsBackward", "MulBackward", "SumBackward", "MeanBackward", "SqrtBackward")
THROUGH = (
    "AddBackward", "SubBackward", "RsubBackward", "NegBackward", "ToCopyBackward", "CloneBackward", "ViewBackward",
    "UnsafeViewBackward", "SqueezeBackward", "UnsqueezeBackward", "ReshapeAliasBackward", "AliasBackward",
    "StackBackward", "CatBackward", "WhereBackward", "PermuteBackward",
)  # fmt: skip


def divisors(loss: torch.Tensor) -> List[float]:
    """What each part of a scalar loss is divided by: elements of a mean, the tokens that count of a cross-entropy, the
    divisor of a sum (1.0: none). In the order of the graph."""
    found: List[float] = []
    waiting: List[Tuple[Any, float]] = [(loss.grad_fn, 1.0)]
    for _ in range(MOST_NODES):
        if not waiting:
            break
        node, factor = waiting.pop()
        name = node_name(node)
        if name in ("MeanBackward", "SumBackward") and _of_scalars(node):
            waiting += [(child, factor) for child, _ in node.next_functions]
        elif name in ("MeanBackward", "SumBackward") and _of_parameters(node):
            continue  # a penalty on weights, the same for every part of a batch
        elif name == "MeanBackward":
            _note(found, _elements(node))
        elif name in ("SumBackward", "NansumBackward", *PRODUCTS):
            _note(found, factor)
        elif saves(node, "reduction"):
            _note(found, _reduced(node, factor))
        elif name in ("DivBackward", "MulBackward"):
            other = _other(node)
            inner = factor * (other if name == "DivBackward" else 1.0 / other) if other else factor
            waiting += [(child, inner) for child, _ in node.next_functions]
        elif name in THROUGH:
            waiting += [(child, factor) for child, _ in node.next_functions]
    return found


class Reading(NamedTuple):
    """`divisors`: of the parts of the losses; `coupled`: they hold examples against each other."""

    examples: int
    divisors: List[float]
    coupled: bool


class Divisors:
    """Over the first micro-batches: is a loss divided by its examples, or by something that follows them?"""

    def __init__(self, looks: int) -> None:
        self._left = looks
        self._first: Optional[List[float]] = None
        self._sizes: Set[int] = set()  # of the micro-batches that were looked at

    def wanted(self, examples: int) -> bool:
        """Is a look at a micro-batch of so many worth its while? One of another size, as the tail, tells most."""
        return self._left > 0 or (examples not in self._sizes and len(self._sizes) < MOST_SIZES)

    def again(self) -> None:
        """Look at the next one too, however many there were: it is of another size."""
        self._left = max(self._left, 1)

    def read(self, roots: Sequence[Any], given: Sequence[Any], examples: int) -> Reading:
        """Of the losses that are about to be differentiated, of so many examples. `given`: the gradient of each, or None."""
        found: List[float] = []
        coupled = False
        for root, gradient in zip(roots, given):
            if not isinstance(root, torch.Tensor):
                continue
            coupled = coupled or couples(root, examples)
            factor = _alike(gradient)
            if root.numel() > 1:  # a sum over its elements
                found += [1.0 / factor] if factor else []
                continue
            own = divisors(root)
            found += own
            if factor and 1.0 in own:
                found = [1.0 / factor if value == 1.0 else value for value in found]
            elif factor:
                found.append(factor * examples)  # the same, by example, where it is a number
        return Reading(examples, found, coupled)

    def differ(self, reading: Reading) -> bool:
        """Take it in. True: a part of the losses is divided by something else than before, by example. That of a micro-batch
        then is no part of a mean over the whole step."""
        self._left -= 1
        examples, found = reading.examples, reading.divisors
        self._sizes.add(examples)
        if examples > 1 and 1.0 in found:  # a sum over examples that nothing divides
            return True
        ratios = [value / examples for value in found]
        if self._first is None or len(self._first) != len(ratios):
            self._first = ratios
            return False
        return any(abs(one - other) > TOLERANCE * abs(other) for one, other in zip(ratios, self._first))


def _alike(gradient: Any) -> Optional[float]:
    """What all elements of it are; None: they differ, or there is none."""
    if not isinstance(gradient, torch.Tensor) or gradient.is_sparse or not gradient.numel():
        return None
    first = float(gradient.detach().reshape(-1)[0].real)
    return first if bool((gradient.detach() == first).all()) else None


def _note(found: List[float], value: Optional[float]) -> None:
    if value is not None:
        found.append(value)


def _of_scalars(node: Any) -> bool:
    return any(node_name(child) in ("StackBackward", "CatBackward") for child, _ in node.next_functions)


def _of_parameters(node: Any) -> bool:
    """Is it made of parameters alone, one by one?"""
    waiting = [child for child, _ in node.next_functions]
    for _ in range(MOST_NODES):
        if not waiting:
            return True
        child = waiting.pop()
        if node_name(child) not in ("AccumulateGrad", *ON_WEIGHTS):
            return False
        waiting += [inner for inner, _ in child.next_functions if inner is not None]
    return False


def _elements(node: Any) -> Optional[float]:
    for name in ("self_sym_numel", "self_numel"):
        if saves(node, name):
            return float(saved(node, name))
    sizes = saved(node, "self_sym_sizes")
    if sizes is None:
        return None
    dims = saved(node, "dim") or range(len(sizes))
    product = 1.0
    for dim in dims:
        # Saved as unsigned: -1 is the largest number.
        product *= sizes[dim if dim < len(sizes) else -1]
    return product


def _reduced(node: Any, factor: float) -> Optional[float]:
    """Of a loss with a reduction of its own: 1 is a mean, 2 a sum."""
    reduction = saved(node, "reduction")
    if reduction == 2:
        return factor
    if reduction != 1:
        return None
    weight = saved(node, "total_weight")
    if isinstance(weight, torch.Tensor):
        return float(weight)
    inner = saved(node, "self")
    return float(inner.numel()) if isinstance(inner, torch.Tensor) else None


def _other(node: Any) -> Optional[float]:
    """The factor that is not differentiated, where there is one and it is a single number."""
    for name in ("other", "self"):
        value = saved(node, name)
        if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.requires_grad:
            return float(value)
    return None
