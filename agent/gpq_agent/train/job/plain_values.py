"""Plain values in checkpoints: what `job.state("name", value)` keeps and accepts."""

from typing import Any, Dict

from gpq_agent.train.checkpoints.state_parts import USER, Parts
from gpq_agent.train.errors import GpqTrainError


class PlainValue:
    """A part of checkpoints with one plain value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.value = state["value"]


class PlainValues:
    """The plain values of one job, by name."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._values: Dict[str, PlainValue] = {}

    def keep(self, name: str, value: Any) -> Any:
        """Keep `value` in checkpoints and return it.

        The first call for `name` returns the value from the checkpoint if there is one. Raises
        GpqTrainError for a value that is not plain.
        """
        if not is_plain(value):
            raise GpqTrainError(
                "job.state({!r}, ...) keeps numbers, strings and lists of them, not a {}".format(
                    name, type(value).__name__
                ),
                "use job.state(part) for an object with state_dict() and load_state_dict()",
            )
        if name in self._values:
            self._values[name].value = value
            return value
        part = self._values[name] = PlainValue(value)
        self._parts.add(USER + name, part, at_once=True)
        return part.value


def is_plain(value: Any) -> bool:
    """Is it None, a bool, a number, a string, or a list, tuple or dictionary of such values?

    The keys of a dictionary must be strings.
    """
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))
