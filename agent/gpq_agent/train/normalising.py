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


class Divisor(NamedTuple):
    """`of_shape`: it is the number of elements, those of padding among them. That follows the shape of a batch, which may be
    another in each step (images of several sizes, buckets of lengths), and must not within one."""

    value: float
    of_shape: bool = False


def divisors(loss: torch.Tensor) -> List[Divisor]:
    """What each part of a scalar loss is divided by: elements of a mean, the tokens that count of a cross-entropy, the
    divisor of a sum (1.0: none). In the order of the graph."""
    found: List[Divisor] = []
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
            elements = _elements(node)
            found += [] if elements is None else [Divisor(elements, of_shape=True)]
        elif name in ("SumBackward", "NansumBackward", *PRODUCTS):
            found.append(Divisor(factor))
        elif saves(node, "reduction"):
            found += _reduced(node, factor)
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
    divisors: List[Divisor]
    coupled: bool


class Divisors:
    """Over the first micro-batches: is a loss divided by its examples, or by something that follows them?"""

    def __init__(self, looks: int) -> None:
        self.of_shape = 0.0  # by example, what the latest loss was divided by that follows its shape; 0.0: nothing
        self._left = looks
        self._first: Optional[List[Divisor]] = None  # by example
        self._step = -1
        self._of_step: List[Divisor] = []  # by example, of the first micro-batch of that step
        self._sizes: Set[int] = set()  # of the micro-batches that were looked at

    def wanted(self, examples: int) -> bool:
        """Is a look at a micro-batch of so many worth its while? One of another size, as the tail, tells most."""
        return self._left > 0 or (examples not in self._sizes and len(self._sizes) < MOST_SIZES)

    def again(self) -> None:
        """Look at the next one too, however many there were: it is of another size."""
        self._left = max(self._left, 1)

    def read(self, roots: Sequence[Any], given: Sequence[Any], examples: int) -> Reading:
        """Of the losses that are about to be differentiated, of so many examples. `given`: the gradient of each, or None."""
        found: List[Divisor] = []
        coupled = False
        for root, gradient in zip(roots, given):
            if not isinstance(root, torch.Tensor):
                continue
            coupled = coupled or couples(root, examples)
            factor = _alike(gradient)
            if root.numel() > 1:  # a sum over its elements
                found += [Divisor(1.0 / factor)] if factor else []
                continue
            own = divisors(root)
            found += own
            if factor and any(item.value == 1.0 for item in own):
                found = [Divisor(1.0 / factor) if item.value == 1.0 else item for item in found]
            elif factor:
                found.append(Divisor(factor * examples))  # the same, by example, where it is a number
        return Reading(examples, found, coupled)

    def differ(self, reading: Reading, step: int) -> bool:
        """Take in that of a micro-batch of this step. True: a part of the losses is divided by something else than before, by
        example; of what follows a shape only within the step. That of a micro-batch then is no part of a mean over the
        whole step."""
        self._left -= 1
        examples = reading.examples
        self._sizes.add(examples)
        if examples > 1 and any(item.value == 1.0 for item in reading.divisors):
            return True  # a sum over examples that nothing divides
        ratios = [item._replace(value=item.value / examples) for item in reading.divisors]
        self.of_shape = sum(item.value for item in ratios if item.of_shape)
        if step != self._step or len(self._of_step) != len(ratios):
            self._step, self._of_step = step, ratios
        if self._first is None or len(self._first) != len(ratios):
            self._first = ratios
        earlier = [(one, two) for one, two in zip(ratios, self._first) if not (one.of_shape and two.of_shape)]
        return any(differs(one.value, two.value) for one, two in (*earlier, *zip(ratios, self._of_step)))


def differs(one: float, other: float) -> bool:
    """Is it more than rounding?"""
    return abs(one - other) > TOLERANCE * abs(other)


def _alike(gradient: Any) -> Optional[float]:
    """What all elements of it are; None: they differ, or there is none."""
    if not isinstance(gradient, torch.Tensor) or gradient.is_sparse or not gradient.numel():
        return None
    first = float(gradient.detach().reshape(-1)[0].real)
    return first if bool((gradient.detach() == first).all()) else None


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


def _reduced(node: Any, factor: float) -> List[Divisor]:
    """Of a loss with a reduction of its own: 1 is a mean, 2 a sum. None or one."""
    reduction = saved(node, "reduction")
    if reduction == 2:
        return [Divisor(factor)]
    if reduction != 1:
        return []
    weight, target, inner = saved(node, "total_weight"), saved(node, "target"), saved(node, "self")
    if isinstance(weight, torch.Tensor):
        whole = isinstance(target, torch.Tensor) and float(weight) == target.numel()
        return [Divisor(float(weight), of_shape=whole)]
    return [Divisor(float(inner.numel()), of_shape=True)] if isinstance(inner, torch.Tensor) else []


def _other(node: Any) -> Optional[float]:
    """The factor that is not differentiated, where there is one and it is a single number."""
    for name in ("other", "self"):
        value = saved(node, name)
        if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.requires_grad:
            return float(value)
    return None
