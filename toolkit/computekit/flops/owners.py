"""Which module an operator belongs to, forward and backward.

Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .copies import identity, tensors
from .cost import Cost


class Owners:
    """Which module an operator belongs to: the call stack going forward, the tagged autograd nodes going back.

    After each module's forward, the autograd nodes between its outputs and what its children made are its own; each is
    tagged with the module's name. Hooks are removed on exit, so nothing accumulates over several counts.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.names = {id(module): name for name, module in root.named_modules()}
        self.stack: list[str] = []
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        for module in self.root.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks: a TorchScript program counts as a whole
            self.handles.append(module.register_forward_pre_hook(self._enter))
            self.handles.append(module.register_forward_hook(self._leave))

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def owner(self, phase: str) -> str:
        """Name of the innermost module that the running operator belongs to."""
        if phase == "forward":
            return self.stack[-1] if self.stack else ""
        node: Any = torch._C._current_autograd_node()
        return node.metadata.get("computekit_module", "") if node is not None else ""

    def idle(self, met: set[int]) -> dict[str, int]:
        """The outermost modules none of whose parameters is among ``met``, with their parameters."""
        return self._outermost(lambda parameters: met.isdisjoint(map(identity, parameters)))

    def without_gradient(self, met: set[int]) -> dict[str, int]:
        """The outermost modules with parameters among ``met``, some that require a gradient and none that has one."""

        def unreached(parameters: list[nn.Parameter]) -> bool:
            wanted = any(p.requires_grad for p in parameters) and all(p.grad is None for p in parameters)
            return wanted and not met.isdisjoint(map(identity, parameters))

        return self._outermost(unreached)

    def _outermost(self, belongs: Callable[[list[nn.Parameter]], bool]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, module in self.root.named_modules():
            parameters = list(module.parameters())
            if parameters and not name.startswith(tuple(f"{outer}." for outer in found)) and belongs(parameters):
                found[name] = sum(p.numel() for p in parameters)
        return found

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self.stack.append(self.names[id(module)])

    def _leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        name = self.stack.pop()
        todo: list[Any] = [leaf.grad_fn for leaf in tensors(output) if leaf.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node is None or "computekit_module" in node.metadata:
                continue
            node.metadata["computekit_module"] = name
            todo.extend(parent for parent, _ in node.next_functions)


def rolled_up(modules: dict[str, Cost]) -> dict[str, Cost]:
    """The costs of modules with those of their children, outermost ("") first."""
    whole: dict[str, Cost] = {}
    for name, own in modules.items():
        parts = name.split(".") if name else []
        for parent in ("", *(".".join(parts[: i + 1]) for i in range(len(parts)))):
            whole.setdefault(parent, Cost()).add(own)
    return whole
