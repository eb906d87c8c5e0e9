"""By what a loss divides: read off the graph of a backward pass, so that a mean over tokens is told from one over examples.

Reads what autograd keeps for its own use, by names that may change with torch: what it does not know, it leaves out. Waits
for the device, so it is asked in the first micro-batches only.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

MOST_NODES = 200
TOLERANCE = 1e-6
# Losses with a reduction of their own: 1 is a mean, 2 a sum.
REDUCED = (
    "NllLossBackward", "NllLoss2DBackward", "MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward",
    "BinaryCrossEntropyBackward", "BinaryCrossEntropyWithLogitsBackward", "SoftMarginLossBackward",
)  # fmt: skip
ON_WEIGHTS = ("PowBackward", "AbsBackward", "MulBackward", "SumBackward", "MeanBackward", "SqrtBackward")
THROUGH = (
    "AddBackward", "SubBackward", "RsubBackward", "NegBackward", "ToCopyBackward", "CloneBackward", "ViewBackward",
    "UnsafeViewBackward", "SqueezeBackward", "UnsqueezeBackward", "ReshapeAliasBackward", "AliasBackward",
    "StackBackward", "CatBackward", "WhereBackward",
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
        name = _name(node)
        if name in ("MeanBackward", "SumBackward") and _of_scalars(node):
            waiting += [(child, factor) for child, _ in node.next_functions]
        elif name in ("MeanBackward", "SumBackward") and _of_parameters(node):
            continue  # a penalty on weights, the same for every part of a batch
        elif name == "MeanBackward":
            _note(found, _elements(node))
        elif name == "SumBackward":
            _note(found, factor)
        elif name in REDUCED:
            _note(found, _reduced(node, name, factor))
        elif name in ("DivBackward", "MulBackward"):
            other = _other(node)
            inner = factor * (other if name == "DivBackward" else 1.0 / other) if other else factor
            waiting += [(child, inner) for child, _ in node.next_functions]
        elif name in THROUGH:
            waiting += [(child, factor) for child, _ in node.next_functions]
    return found


def couples(loss: torch.Tensor, examples: int) -> bool:
    """Does the loss hold every example of the batch against every other, as contrastive ones do? Seen by a product of two
    computed matrices that is examples x examples, or by distances."""
    waiting: List[Any] = [loss.grad_fn]
    seen: Set[Any] = set()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = _name(node)
        inner = [child for child, _ in node.next_functions]
        if name == "CdistBackward" or (name == "MmBackward" and _is_square(node, examples) and not _has_weights(inner)):
            return True
        waiting += inner
    return False


def _is_square(node: Any, examples: int) -> bool:
    left, right = getattr(node, "_saved_self", None), getattr(node, "_saved_mat2", None)
    if left is None or right is None:
        return False
    return bool(left.shape[0] == examples and right.shape[1] == examples and examples > 1)


def _has_weights(nodes: Sequence[Any]) -> bool:
    """Is one of them a parameter, or one turned round?"""
    for node in nodes:
        while _name(node) in ("TBackward", "TransposeBackward"):
            node = node.next_functions[0][0]
        if node is None or _name(node) == "AccumulateGrad":
            return True
    return False


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

    @property
    def wanted(self) -> bool:
        return self._left > 0

    def again(self) -> None:
        """Look at the next one too, however many there were: it is of another size."""
        self._left = max(self._left, 1)

    def read(self, roots: Sequence[Any], examples: int) -> Reading:
        """Of the losses that are about to be differentiated, of so many examples."""
        scalars = [item for item in roots if isinstance(item, torch.Tensor) and item.numel() == 1]
        coupled = any(couples(item, examples) for item in scalars)
        return Reading(examples, [value for item in scalars for value in divisors(item)], coupled)

    def differ(self, reading: Reading) -> bool:
        """Take it in. True: a part of the losses is divided by something else than before, by example. That of a micro-batch
        then is no part of a mean over the whole step."""
        self._left -= 1
        examples, found = reading.examples, reading.divisors
        if examples > 1 and 1.0 in found:  # a sum over examples that nothing divides
            return True
        ratios = [value / examples for value in found]
        if self._first is None or len(self._first) != len(ratios):
            self._first = ratios
            return False
        return any(abs(one - other) > TOLERANCE * abs(other) for one, other in zip(ratios, self._first))


def _name(node: Any) -> str:
    """``MulBackward0``, without the number of its overload."""
    return type(node).__name__.rstrip("0123456789") if node is not None else ""


def _note(found: List[float], value: Optional[float]) -> None:
    if value is not None:
        found.append(value)


def _of_scalars(node: Any) -> bool:
    return any(_name(child) in ("StackBackward", "CatBackward") for child, _ in node.next_functions)


def _of_parameters(node: Any) -> bool:
    """Is it made of parameters alone, one by one?"""
    waiting = [child for child, _ in node.next_functions]
    for _ in range(MOST_NODES):
        if not waiting:
            return True
        child = waiting.pop()
        if _name(child) not in ("AccumulateGrad", *ON_WEIGHTS):
            return False
        waiting += [inner for inner, _ in child.next_functions if inner is not None]
    return False


def _elements(node: Any) -> Optional[float]:
    for name in ("_saved_self_sym_numel", "_saved_self_numel"):
        if hasattr(node, name):
            return float(getattr(node, name))
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is None:
        return None
    dims = getattr(node, "_saved_dim", None) or range(len(sizes))
    product = 1.0
    for dim in dims:
        # Saved as unsigned: -1 is the largest number.
        product *= sizes[dim if dim < len(sizes) else -1]
    return product


def _reduced(node: Any, name: str, factor: float) -> Optional[float]:
    reduction = getattr(node, "_saved_reduction", None)
    if reduction == 2:
        return factor
    if reduction != 1:
        return None
    weight = getattr(node, "_saved_total_weight", None)
    if isinstance(weight, torch.Tensor):
        return float(weight)
    inner = getattr(node, "_saved_self", None)
    return float(inner.numel()) if isinstance(inner, torch.Tensor) else None


def _other(node: Any) -> Optional[float]:
    """The factor that is not differentiated, where there is one and it is a single number."""
    for name in ("_saved_other", "_saved_self"):
        value = getattr(node, name, None)
        if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.requires_grad:
            return float(value)
    return None
