"""Is a loss the mean of what its examples lose? Read off the graph: not where it holds examples
against each other, nor where it bends what was summed over them (the root of a mean, a floor).

Reads what autograd keeps for its own use, by names that may change with torch, and no values: it
waits for no device. What is computed without gradients (weights of examples, a mixed input) is not
in the graph, so it is not seen.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from gpq_agent.train.internals import saved, shape_of

MOST_NODES = 200
SUMS = ("MeanBackward", "SumBackward", "NansumBackward", "DotBackward")
# Sums that divide nothing and bend nothing are linear; these are not.
BENT_SUMS = (
    "StdBackward", "VarBackward", "StdMeanBackward", "VarMeanBackward", "LogsumexpBackward",
    "LogSoftmaxBackward",
    "SoftmaxBackward", "NormBackward", "LinalgVectorNormBackward", "MaxBackward", "MinBackward",
    "AmaxBackward",
    "AminBackward", "MedianBackward", "NanmedianBackward", "TopkBackward", "SortBackward",
    "KthvalueBackward",
    "CumsumBackward", "LogcumsumexpBackward", "ProdBackward",
)  # fmt: skip
LINEAR = (
    *SUMS, "AddBackward", "SubBackward", "RsubBackward", "NegBackward", "ToCopyBackward",
    "CloneBackward", "ViewBackward",
    "UnsafeViewBackward", "SqueezeBackward", "UnsqueezeBackward", "ReshapeAliasBackward",
    "AliasBackward", "StackBackward",
    "CatBackward", "WhereBackward", "SelectBackward", "SliceBackward", "IndexBackward",
    "UnbindBackward", "SplitBackward",
    "ExpandBackward", "PermuteBackward", "TransposeBackward", "TBackward", "AsStridedBackward",
    "DetachBackward",
)  # fmt: skip
PRODUCTS = (
    "MulBackward",
    "DivBackward",
    "MmBackward",
    "MvBackward",
    "BmmBackward",
    "AddmmBackward",
)
ELEMENTWISE = (
    "AddBackward",
    "SubBackward",
    "RsubBackward",
    "MulBackward",
    "DivBackward",
    "MaximumBackward",
)
# Of parameters alone these make what every part of a batch has alike: penalties, learned weights of
# losses.
OF_WEIGHTS = (
    *LINEAR, "MulBackward", "DivBackward", "PowBackward", "AbsBackward", "SqrtBackward",
    "ExpBackward", "LogBackward",
    "SoftplusBackward", "SigmoidBackward", "SoftmaxBackward", "NormBackward",
    "LinalgVectorNormBackward", "ClampBackward",
    "ClampMinBackward", "ClampMaxBackward", "ReciprocalBackward", "MmBackward",
)  # fmt: skip


class _Part(NamedTuple):
    """What a node's values are made of. `data`: of examples, not of parameters alone; `summed`:
    over the examples."""

    data: bool
    summed: bool


NOTHING = _Part(False, False)


def mixes_examples(loss: torch.Tensor, examples: int) -> bool:
    """Has a part of this batch another loss than its examples have in the whole?"""
    nodes = _nodes(loss.grad_fn)
    parts: Dict[Any, _Part] = {}
    for node in reversed(nodes):  # whatever a node is made of comes first
        inner = [
            parts.get(child, _Part(True, False))
            for child, _ in node.next_functions
            if child is not None
        ]
        part = _judge(node, inner, examples)
        if part is None:
            return True
        parts[node] = part
    return False


def _nodes(root: Any) -> List[Any]:
    """The nearest nodes of the graph, each before what it is made of."""
    near: Dict[Any, None] = {}
    waiting = [root]
    for node in waiting:
        if node is None or node in near:
            continue
        near[node] = None
        if len(near) == MOST_NODES:
            break
        waiting += [child for child, _ in node.next_functions]
    ordered: List[Any] = []
    visited = set()
    stack: List[Tuple[Any, bool]] = [(root, False)]
    while stack:
        node, is_complete = stack.pop()
        if is_complete:
            ordered.append(node)
        elif node in near and node not in visited:
            visited.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in node.next_functions]
    return ordered[::-1]


def _judge(node: Any, inner: List[_Part], examples: int) -> Optional[_Part]:
    """What this node makes of its parts. None: it couples examples."""
    name = node_name(node)
    if name == "AccumulateGrad":
        return NOTHING
    if not any(part.data for part in inner) and name in OF_WEIGHTS and not _other_is_data(node):
        return NOTHING
    if inner and _pairs(node, name, inner, examples):
        return None
    summed = any(part.summed for part in inner)
    over = (name in SUMS or name in BENT_SUMS) and _over_examples(node, examples)
    if over and name in BENT_SUMS:
        return None
    if summed:
        several = sum(part.data for part in inner) > 1
        if name in PRODUCTS and several:
            return None
        if name == "DivBackward" and not inner[0].data:  # one over a sum
            return None
        if name not in LINEAR and name not in PRODUCTS:
            return None
    return _Part(True, summed or over or _is_reduced(node))


def _is_reduced(node: Any) -> bool:
    """A loss with a reduction of its own, which is not `none`."""
    return saved(node, "reduction") in (1, 2)


def _pairs(node: Any, name: str, inner: List[_Part], examples: int) -> bool:
    """Does the node make something of every example with every other, or a product of the batch
    with itself?"""
    if examples < 2 or not all(part.data for part in inner):
        return False
    if name == "CdistBackward":
        return all(side.shape[-2] == examples for side in (saved(node, "x1"), saved(node, "x2")))
    made_places = _places(_shape(node, 0), examples)
    given_places = max(
        _places(_shape(child, at), examples)
        for child, at in node.next_functions
        if child is not None
    )
    if name == "MmBackward" and len(inner) > 1:
        return made_places > 1 or _over_batch(node, examples)
    return name in (*ELEMENTWISE, "MmBackward") and made_places > 1 and made_places > given_places


def _over_batch(node: Any, examples: int) -> bool:
    """Does a product of two computed matrices sum over the examples?"""
    matrix = saved(node, "self")
    return matrix is not None and bool(matrix.shape[1] == examples)


def _places(shape: Tuple[int, ...], examples: int) -> int:
    return sum(size == examples for size in shape)


def _over_examples(node: Any, examples: int) -> bool:
    """Does a sum go over the examples: over all, or along the first dimension where that is
    theirs?"""
    dims = saved(node, "dim")
    child, at = node.next_functions[0]
    shape = _shape(child, at)
    if dims is None or not shape:
        return True
    dims = [dims] if isinstance(dims, int) else list(dims)
    # Saved as unsigned where they are many: -1 is the largest number.
    first = not dims or any(dim in (0, -len(shape)) or dim - 2**64 == -len(shape) for dim in dims)
    if not first or examples < 2:
        return False
    # Several rows of an example may be put together there. Sequences have their examples behind the
    # time.
    behind = len(shape) > 2 and shape[1] == examples
    return shape[0] % examples == 0 and not behind


def _shape(node: Any, at: int) -> Tuple[int, ...]:
    """Of what the node has made; () where that is a number, or not known."""
    shape = shape_of(node, at)
    if shape is None:
        variable = getattr(node, "variable", None)
        return tuple(variable.shape) if isinstance(variable, torch.Tensor) else ()
    return shape


def _other_is_data(node: Any) -> bool:
    """Is the factor that is not differentiated more than a number: a tensor that may be of the
    batch?"""
    for name in ("other", "self", "mat2"):
        value = saved(node, name)
        if isinstance(value, torch.Tensor) and value.numel() > 1 and not value.requires_grad:
            return True
    return False


def node_name(node: Any) -> str:
    """``MulBackward0``, without the number of its overload."""
    return type(node).__name__.rstrip("0123456789") if node is not None else ""
