"""Where a checkpoint keeps its weights: state_dicts in any nesting, several models, optimizer state apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .checkpoint import LazyTensor
from .pickles import Call, Malformed

MAIN_PARTS = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "module", "weights", "params")
"""Keys under which checkpoints keep the model itself, the usual ones first."""

_CERTAIN = MAIN_PARTS[:4]  # beside one of these only a moving average is a model too

_OPTIMIZER = re.compile(r"(^|_)(optim|optims|optimizer|optimizers|optimiser)(_|$)", re.IGNORECASE)
_SCHEDULE = re.compile(r"(^|_)(schedulers?|scaler)(_|$)", re.IGNORECASE)
_UNUSUAL = {
    "torch._utils._rebuild_qtensor": ("quantized tensor", "give the model from before torch quantized it"),
    "torch._utils._rebuild_sparse_tensor": ("sparse tensor", "save it with Tensor.to_dense"),
    "torch._utils._rebuild_nested_tensor": ("nested tensor", "save its parts"),
    "torch._utils._rebuild_meta_tensor_no_storage": ("meta tensor", "its values are in no file"),
    "numpy.core.multiarray._reconstruct": ("numpy array", "torch.save tensors, made with torch.from_numpy"),
    "numpy._core.multiarray._reconstruct": ("numpy array", "torch.save tensors, made with torch.from_numpy"),
}  # what a pickle calls for what is not an ordinary tensor: what that makes, and what helps
_MAX_DEPTH = 30
_MAX_LISTED = 100
_MAX_NAMED = 6


@dataclass(frozen=True)
class Place:
    """Where a weight lives: ``container[key]``, reached through the keys (and positions in lists) of ``path``."""

    container: dict[Any, Any]
    key: str
    path: tuple[str, ...]


def find_weights(root: Any) -> dict[str, Place]:
    """The weights of a checkpoint by name: tensors in nested dictionaries, optimizer state left out.

    The keys that all weights have in common (``state_dict``, ``model``) are left off; what remains of the path is
    joined with dots, so that a checkpoint with ``model`` and ``ema`` gives ``model.fc.weight`` and ``ema.fc.weight``.

    Raises:
        Malformed: two weights would have the same name.
    """
    seen: set[int] = set()
    places = [place for path, inner in _dictionaries((), root, seen) for place in _tensors_below(inner, path, seen)]
    common = _common([place.path for place in places])
    named: dict[str, Place] = {}
    for place in places:
        name = ".".join([*place.path[len(common) :], place.key])
        if name in named:
            raise Malformed(f"two tensors are both called {name!r}")
        named[name] = place
    return named


def parts(weights: dict[str, Place]) -> tuple[str, ...]:
    """The name prefixes of the models among ``weights``, the main one first."""
    paths = list(dict.fromkeys(place.path for place in weights.values()))
    common = len(_common(paths))
    heads = dict.fromkeys(path[common : common + 1] for path in paths)
    ranked = sorted(heads, key=lambda head: rank(head[0] if head else ""))
    return tuple("".join(f"{key}." for key in head) for head in ranked) or ("",)


def rank(key: Any) -> int:
    """Lower for keys under which checkpoints usually keep the model itself."""
    return MAIN_PARTS.index(key) if key in MAIN_PARTS else len(MAIN_PARTS)


def top_level(root: Any) -> dict[Any, Any]:
    """What a checkpoint holds by its keys, or by its positions if it is a list or tuple."""
    if isinstance(root, (list, tuple)):
        return {str(position): item for position, item in enumerate(root)}
    return root if isinstance(root, dict) else {}


def is_optimizer(key: str, value: Any) -> bool:
    """Whether ``value``, kept under ``key``, is the state of an optimizer, a scheduler or a gradient scaler."""
    if isinstance(value, dict) and "param_groups" in value and "state" in value:
        return True
    if _OPTIMIZER.search(key):
        return True
    tensors = isinstance(value, dict) and any(isinstance(item, LazyTensor) for item in value.values())
    return _SCHEDULE.search(key) is not None and not tensors  # a model may well have a layer called scaler


def unusual(value: Any) -> str:
    """What kind of tensor a call makes that is not an ordinary one; empty for anything else."""
    return _UNUSUAL.get(str(value.function), ("", ""))[0] if isinstance(value, Call) else ""


def unusual_weights(weights: Iterable[Place]) -> Iterator[tuple[str, str]]:
    """Names (as the file spells them) and kinds of the unusual tensors that lie among ``weights``."""
    containers = {id(place.container): place.container for place in weights}
    for container in containers.values():
        for key, value in container.items():
            kinds = map(unusual, value if isinstance(value, tuple) else (value,))  # packed ones come with a bias
            yield from ((str(key), kind) for kind in kinds if kind)


def describe(root: Any, imports: Sequence[str] = ()) -> str:
    """What a checkpoint without weights holds instead, for the line that refuses it.

    ``imports`` are the names that its pickle mentions: they tell what its tensors are if those are no ordinary ones.
    """
    for name in imports:
        if name in _UNUSUAL:
            what, help_ = _UNUSUAL[name]
            return f"what it holds are {what}s: {help_}"
    if is_optimizer("", root):
        return "it is the state of an optimizer alone: give the file that holds the model"
    if isinstance(root, LazyTensor):
        return f"it is one tensor without a name, of shape {list(root.shape)}"
    if isinstance(root, (list, tuple)) and any(isinstance(item, LazyTensor) for item in root):
        return f"it is a list of {len(root)} tensors without names: save a state_dict"
    if not isinstance(root, dict) or not root:
        return f"it is {'an empty dictionary' if root == {} else 'no dictionary of tensors'}"
    held = [f"{key} (an optimizer's)" if is_optimizer(str(key), value) else str(key) for key, value in root.items()]
    return f"it holds {', '.join(held[:_MAX_NAMED])}" + (" ..." if len(held) > _MAX_NAMED else "")


def _common(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    if not paths:
        return ()
    low, high = min(paths), max(paths)
    same = 0
    while same < min(len(low), len(high)) and low[same] == high[same]:
        same += 1
    return low[:same]


def _dictionaries(
    path: tuple[str, ...], value: Any, seen: set[int]
) -> Iterator[tuple[tuple[str, ...], dict[Any, Any]]]:
    """``value`` if it is a dictionary, or the dictionaries in short lists and tuples in it, with their paths."""
    if isinstance(value, dict):
        yield path, value
    elif isinstance(value, (list, tuple)) and len(value) <= _MAX_LISTED and id(value) not in seen:
        seen.add(id(value))
        for position, item in enumerate(value):
            if len(path) <= _MAX_DEPTH and not is_optimizer("", item):
                yield from _dictionaries((*path, str(position)), item, seen)


def _tensors_below(container: dict[Any, Any], path: tuple[str, ...], seen: set[int]) -> Iterator[Place]:
    """Tensors of ``container`` and of the dictionaries in it; where both hold some, the larger side is the model.

    A single tensor beside a state_dict (a loss, a step counter) is not a weight, and neither is a stray dictionary of
    tensors inside a state_dict, or beside one whose name leaves no doubt.
    """
    if id(container) in seen or len(path) > _MAX_DEPTH:
        return
    seen.add(id(container))
    own = [Place(container, key, path) for key, value in container.items() if _is_weight(key, value)]
    below: dict[str, list[Place]] = {}
    for key, value in container.items():
        if isinstance(key, str) and not is_optimizer(key, value):
            inside = _dictionaries((*path, key), value, seen)
            below[key] = [place for inner, found in inside for place in _tensors_below(found, inner, seen)]
    if any(below.get(key) for key in _CERTAIN):
        below = {key: places for key, places in below.items() if key in _CERTAIN or "ema" in key.lower()}
    nested = [place for places in below.values() for place in places]
    yield from own if sum(map(_size, own)) >= sum(map(_size, nested)) else nested


def _is_weight(key: Any, value: Any) -> bool:
    return isinstance(key, str) and isinstance(value, LazyTensor)


def _size(place: Place) -> int:
    tensor: LazyTensor = place.container[place.key]
    return 1 + tensor.nbytes
