"""Copies of a module to run for a count, which leaves the module itself alone; and what tensors hold.

Importing this imports torch.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


def on_meta(module: nn.Module) -> nn.Module:
    """A copy of ``module`` whose parameters and buffers have shapes but no data; ties stay ties."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(
            parameter.detach().to("meta"), requires_grad=parameter.requires_grad and parameter.is_floating_point()
        )
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.detach().to("meta")
    return _copied(module, memo)


def with_values(module: nn.Module) -> nn.Module:
    """A copy of ``module`` with weights of its own."""
    sparse = {id(buffer): buffer.clone() for buffer in module.buffers() if buffer.layout != torch.strided}
    copied = _copied(module, sparse)  # compressed sparse tensors have no deep copy
    copied.zero_grad()
    return copied


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy; where an attribute has none (a lock, a weight that a hook derives), of the module tree alone."""
    before = dict(memo)
    try:
        return copy.deepcopy(module, memo)
    except (TypeError, RuntimeError):
        return _tree_copied(module, before)


def _tree_copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """New modules with the parameters and buffers of ``memo``, or copies; other attributes are shared."""
    if isinstance(module, torch.jit.ScriptModule):
        return copy.deepcopy(module, memo)
    if id(module) in memo:
        return memo[id(module)]  # type: ignore[no-any-return]
    twin = memo[id(module)] = type(module).__new__(type(module))
    twin.__dict__ = {k: copy.copy(v) if isinstance(v, (dict, list, set)) else v for k, v in module.__dict__.items()}
    for name, child in module._modules.items():
        twin._modules[name] = None if child is None else _tree_copied(child, memo)
    stored: tuple[dict[str, Any], ...] = (twin._parameters, twin._buffers)
    for own in stored:
        for name, tensor in own.items():
            own[name] = copy.deepcopy(tensor, memo)
    if isinstance(twin, nn.RNNBase):
        twin._flat_weights = [getattr(twin, name) for name in twin._flat_weights_names]
    return twin


def tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among ``values``, however they are nested."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def identity(tensor: torch.Tensor) -> int:
    """What a tensor shares with its views: its storage, where it has one of its own."""
    if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided:
        return int(tensor.untyped_storage()._cdata)
    return id(tensor)


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor holds; of a sparse one, of its indices and values."""
    if tensor.layout == torch.strided:
        return tensor.nbytes
    return sum(part.nbytes for part in parts(tensor))


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors that a sparse one is stored as, values last."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()
