"""Pickled ``nn.Module`` objects and TorchScript modules as state_dicts, read from inert data without running them."""

from __future__ import annotations

from typing import Any

from .checkpoint import LazyTensor
from .pickles import Call, Malformed, Ordered

_MAX_MODULES = 100_000


def is_module(value: Any) -> bool:
    """Whether ``value`` is what a pickled ``nn.Module`` leaves behind."""
    return isinstance(value, Call) and isinstance(value.state, dict) and {"_parameters", "_modules"} <= set(value.state)


def holds_module(root: Any) -> bool:
    """Whether ``root`` is a pickled module or a checkpoint dict that holds one."""
    return is_module(root) or (isinstance(root, dict) and any(map(is_module, root.values())))


def without_modules(root: Any) -> Any:
    """``root`` with its pickled modules, itself or one level down, replaced by their state_dicts."""
    if is_module(root):
        return state_dict(root)
    if not isinstance(root, dict) or not holds_module(root):
        return root
    return {key: state_dict(value) if is_module(value) else value for key, value in root.items()}


def state_dict(module: Call) -> Ordered:
    """The tensors of a module under the names of its ``state_dict()``, in its order.

    Raises:
        Malformed: the modules contain each other, or are absurdly many.
    """
    collector = _Collector()
    collector.collect(module, "", 0)
    return collector.state


class _Collector:
    def __init__(self) -> None:
        self.state = Ordered()
        self.visited = 0

    def collect(self, module: Call, prefix: str, depth: int) -> None:
        self.visited += 1
        if depth > 100 or self.visited > _MAX_MODULES:
            raise Malformed("modules are nested without end")
        attributes = module.state if isinstance(module.state, dict) else {}
        if "_parameters" in attributes:
            hidden = _names(attributes.get("_non_persistent_buffers_set"))
            buffers = {key: value for key, value in _table(attributes, "_buffers").items() if key not in hidden}
            attributes = {**_table(attributes, "_parameters"), **buffers, **_table(attributes, "_modules")}
        for name, value in attributes.items():
            if isinstance(value, LazyTensor):
                self.state[f"{prefix}{name}"] = value
        for name, value in attributes.items():
            if isinstance(value, Call) and isinstance(value.state, dict):
                self.collect(value, f"{prefix}{name}.", depth + 1)


def _table(attributes: dict[Any, Any], name: str) -> dict[Any, Any]:
    found = attributes.get(name)
    return found if isinstance(found, dict) else {}


def _names(value: Any) -> set[Any]:
    """The members of a set, which protocol 2 writes as a call."""
    if isinstance(value, Call) and value.arguments and isinstance(value.arguments[0], list):
        value = value.arguments[0]
    return {name for name in value if isinstance(name, str)} if isinstance(value, (set, list)) else set()
