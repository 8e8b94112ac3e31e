"""The graph of a module that is safe to rewrite: ``torch.fx``, with what tracing gets wrong refused.

Importing this imports torch.
"""

from __future__ import annotations

import inspect
import operator

import torch
import torch.nn.functional as F
from torch import fx, nn

_IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_IN_PLACE = {operator.iadd, operator.isub, operator.imul, operator.itruediv, torch.relu_, torch.dropout_}


class Untraceable(Exception):
    """The code of a module cannot be turned into a graph that does the same for every input.

    Not for users: callers go on with parts of the module.
    """


FORWARD = "_float_forward"
"""Where a class that overrides ``forward`` to run something else keeps the one that is traced."""


def inputs_of(kind: type[nn.Module]) -> list[str]:
    """Names of the arguments that a call of a module needs; raises Untraceable where it may take any number."""
    needed = []
    for parameter in _parameters(kind):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Untraceable(f"forward() takes {parameter}")
        if parameter.default is parameter.empty:
            needed.append(parameter.name)
    return needed


def _parameters(kind: type[nn.Module]) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(kind, FORWARD, kind.forward)).parameters.values())[1:]


class _Tracer(fx.Tracer):
    """Goes into every module but PyTorch's own, compressed ones among them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        kind = getattr(type(m), "_uncompressed", type(m))
        return kind.__module__.startswith("torch.nn") and not issubclass(kind, nn.Sequential)


def trace(module: nn.Module) -> tuple[fx.Graph, dict[str, torch.Tensor]]:
    """The graph of ``module`` in eval mode, called with the arguments that it needs and the others at their defaults.

    Also the tensors that the graph names and ``module`` does not have: constants that its code made.

    Raises:
        Untraceable: the code depends on values, or changes a tensor that is used afterwards.
    """
    kind = type(module)
    needed = inputs_of(kind)
    defaults = {p.name: p.default for p in _parameters(kind) if p.default is not p.empty}
    before = set(module.__dict__)
    tracer = _Tracer()
    tracer.traced_func_name = FORWARD if hasattr(kind, FORWARD) else "forward"
    try:
        graph = tracer.trace(module, concrete_args=defaults or None)
    except Exception as error:  # tracing runs anybody's code on stand-ins for tensors, and may fail in any way
        raise Untraceable(f"{type(error).__name__}: {error}") from error
    finally:  # the tracer leaves them on the module
        constants = {name: module.__dict__.pop(name) for name in set(module.__dict__) - before}
    _drop_defaults(graph, len(needed))
    modules = dict(module.named_modules())
    position = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if _changes_what_is_used_later(node, modules, position):
            raise Untraceable(f"{node} changes a tensor in place that is used afterwards")
    for node in list(graph.nodes):
        if _is_identity(node, modules):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
    return graph, constants


def _drop_defaults(graph: fx.Graph, needed: int) -> None:
    """Remove the inputs that tracing made of arguments with defaults, and all checks: on them, and on shapes."""
    checks = (torch._assert, fx._symbolic_trace._assert_is_none)
    for node in reversed(graph.nodes):
        idle = node.target in (operator.eq, getattr) and not node.users
        if node.op == "call_function" and (node.target in checks or idle):
            graph.erase_node(node)
    for node in [node for node in graph.nodes if node.op == "placeholder"][needed:]:
        if node.users:
            raise Untraceable(f"the default of {node} takes part in the computation")
        graph.erase_node(node)


def _changes_what_is_used_later(node: fx.Node, modules: dict[str, nn.Module], position: dict[fx.Node, int]) -> bool:
    """Whether ``node`` works in place on a value that another one reads afterwards, itself or as a view."""
    target = str(node.target)
    method = node.op == "call_method" and target.endswith("_") and not target.endswith("__")
    module = node.op == "call_module" and getattr(modules[target], "inplace", False)
    if not (method or module or node.kwargs.get("inplace") or node.target in _IN_PLACE):
        return node.target is operator.setitem
    changed: fx.Node | None = next(iter(node.all_input_nodes), None)
    while changed is not None:
        if any(user is not node and position[user] > position[node] for user in changed.users):
            return True
        source = changed.op in ("call_method", "call_function") and changed.all_input_nodes  # it may be a view of that
        changed = source[0] if source else None
    return False


def _is_identity(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], _IDENTITIES)
    return node.target is F.dropout and node.kwargs.get("training") is False
