"""For loop bodies that must leave no trace: restores the tensors and variables that they change."""

import ctypes
import inspect
from typing import Any, Dict, Iterator, List, Set, Tuple

import torch

from gpq_agent.train import internals


class Undo(internals.TorchDispatchMode):
    """Inside, a tensor that is older than the mode is copied to the host before the first write to
    it. `restore` puts the copies back.

    epsilon: of the coarsest type that was computed in.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.epsilon = 0.0
        self._own: Set[int] = set()  # addresses of the storages that were made inside
        # A tensor over each storage that was written to, and its bytes before that.
        self._kept: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}

    def restore(self) -> None:
        """After the mode has ended."""
        for tensor, content in self._kept.values():
            tensor.copy_(content)

    def has_restored(self, tensor: torch.Tensor) -> bool:
        return _address(tensor) in self._kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = internals.schema_of(func)
        if schema is None:  # an operator of other operators, which are seen themselves
            return func(*args, **kwargs)
        for place, argument in enumerate(schema.arguments):
            alias = argument.alias_info
            if alias is not None and alias.is_write:
                value = args[place] if args[place:] else kwargs.get(argument.name)
                for tensor in _tensors(value):
                    number = _address(tensor)
                    if number not in self._own and number not in self._kept:
                        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                        whole.set_(tensor.untyped_storage())
                        self._kept[number] = whole, whole.to("cpu", copy=True)
        result = func(*args, **kwargs)
        results = result if len(schema.returns) > 1 else (result,)
        for output, value in zip(schema.returns, results):
            for tensor in _tensors(value):
                if tensor.is_floating_point():
                    self.epsilon = max(self.epsilon, torch.finfo(tensor.dtype).eps)
                if output.alias_info is None:
                    self._own.add(_address(tensor))
        return result


class Variables:
    """Of the function that runs a loop, and of generators between it and the loader. `restore`
    gives them the values that they have now. What is in an object or a list stays."""

    def __init__(self, frame: Any) -> None:
        """`frame`: of the function that asks the loader for a batch."""
        self._values: List[Tuple[Any, Dict[str, Any]]] = []
        while frame is not None:
            self._values.append((frame, dict(frame.f_locals)))
            is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
            frame = frame.f_back if is_generator else None

    def restore(self) -> None:
        for frame, values in self._values:
            frame.f_locals.update(values)
            # Before Python 3.13 these are a copy.
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those with memory of their own, in a value or a list."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, torch.Tensor) and item.layout == torch.strided:
            yield item


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
