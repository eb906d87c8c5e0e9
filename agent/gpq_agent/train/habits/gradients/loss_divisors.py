"""By what a loss divides: read off the graph of a backward pass, so that a mean over tokens is told
from one over examples.

Reads what autograd keeps for its own use, by names that may change with torch: what it does not
know, it leaves out. Waits for the device, so it is asked in the first micro-batches only.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from gpq_agent.train.internals import saved, saves

from .example_mixing import node_name

MOST_NODES = 200
TOLERANCE = 1e-6
PRODUCTS = (
    "DotBackward",
    "MmBackward",
    "MvBackward",
    "BmmBackward",
)  # a weighted sum, where one number comes out
ON_WEIGHTS = (
    "PowBackward",
    "AbsBackward",
    "MulBackward",
    "SumBackward",
    "MeanBackward",
    "SqrtBackward",
)
THROUGH = (
    "AddBackward", "SubBackward", "RsubBackward", "NegBackward", "ToCopyBackward", "CloneBackward",
    "ViewBackward",
    "UnsafeViewBackward", "SqueezeBackward", "UnsqueezeBackward", "ReshapeAliasBackward",
    "AliasBackward",
    "StackBackward", "CatBackward", "WhereBackward", "PermuteBackward",
)  # fmt: skip


class Divisor(NamedTuple):
    """`of_shape`: it is the number of elements, those of padding among them. That follows the shape
    of a batch, which may be another in each step (images of several sizes, buckets of lengths), and
    must not within one."""

    value: float
    of_shape: bool = False


def divisors(loss: torch.Tensor) -> List[Divisor]:
    """What each part of a scalar loss is divided by: elements of a mean, the tokens that count of a
    cross-entropy, the divisor of a sum (1.0: none). In the order of the graph."""
    parts: List[Divisor] = []
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
            parts += [] if elements is None else [Divisor(elements, of_shape=True)]
        elif name in ("SumBackward", "NansumBackward", *PRODUCTS):
            parts.append(Divisor(factor))
        elif saves(node, "reduction"):
            parts += _reduced(node, factor)
        elif name in ("DivBackward", "MulBackward"):
            other = _other(node)
            inner = factor * (other if name == "DivBackward" else 1.0 / other) if other else factor
            waiting += [(child, inner) for child, _ in node.next_functions]
        elif name in THROUGH:
            waiting += [(child, factor) for child, _ in node.next_functions]
    return parts


def divisors_of(roots: Sequence[Any], grad_tensors: Sequence[Any], examples: int) -> List[Divisor]:
    """Of the losses that are about to be differentiated, of so many examples. `grad_tensors`: the
    gradient of each, or None."""
    parts: List[Divisor] = []
    for root, gradient in zip(roots, grad_tensors):
        if not isinstance(root, torch.Tensor):
            continue
        factor = _common_value(gradient)
        if root.numel() > 1:  # a sum over its elements
            parts += [Divisor(1.0 / factor)] if factor else []
            continue
        own = divisors(root)
        parts += own
        if factor and any(item.value == 1.0 for item in own):
            parts = [Divisor(1.0 / factor) if item.value == 1.0 else item for item in parts]
        elif factor:
            parts.append(Divisor(factor * examples))  # the same, by example, where it is a number
    return parts


def differs(one: float, other: float) -> bool:
    """Is it more than rounding?"""
    return abs(one - other) > TOLERANCE * abs(other)


def _common_value(gradient: Any) -> Optional[float]:
    """What all elements of it are; None: they differ, or there is none."""
    if not isinstance(gradient, torch.Tensor) or gradient.is_sparse or not gradient.numel():
        return None
    first = float(gradient.detach().reshape(-1)[0].real)
    return first if bool((gradient.detach() == first).all()) else None


def _of_scalars(node: Any) -> bool:
    return any(
        node_name(child) in ("StackBackward", "CatBackward") for child, _ in node.next_functions
    )


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
