"""Runnable modules: building an architecture and putting a file's weights into it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import host
from ..errors import ComputekitError, FileProblem, UnknownName
from ..imports import import_object

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .base import ModelFile


@dataclass(frozen=True)
class ArchRef:
    """An architecture by name (``resnet`` or ``package.module:callable``) and its arguments."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


def build(arch: ArchRef) -> nn.Module:
    """A fresh module of ``arch``; raises UnknownName, or ComputekitError if the factory fails."""
    from torch import nn

    factory = (
        import_object(arch.name, "architecture") if ":" in arch.name else host.current().architecture(arch.name).build
    )
    if not callable(factory):
        raise ComputekitError(f"architecture {arch.name!r} is a {type(factory).__name__}, not a callable")
    _check_arguments(arch, factory)
    try:
        module = factory(**arch.args)
    except ComputekitError:
        raise
    except Exception as error:  # a factory is anybody's code and may fail in any way
        given = ", ".join(f"{key}={value!r}" for key, value in arch.args.items())
        raise ComputekitError(
            f"architecture {arch.name!r} cannot be built with ({given}): {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ComputekitError(f"architecture {arch.name!r} returned a {type(module).__name__}, not a torch nn.Module")
    return module


def _check_arguments(arch: ArchRef, factory: Callable[..., Any]) -> None:
    """Raise UnknownName, with the nearest names, for an argument that ``factory`` does not have."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable without a signature says for itself what it cannot take
        return
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for key in arch.args:
        if key not in parameters:
            raise UnknownName(f"argument of architecture {arch.name!r}:", key, parameters)


def save_module(module: nn.Module, path: str | Path, arch: ArchRef, **metadata: Any) -> None:
    """Write ``module``'s state_dict with its architecture to ``path`` (torch zip, opens with weights_only=True).

    ``path`` is normally the temporary file of `StepRun.writing`. ``metadata`` is plain data kept with the model.
    """
    document = {
        "state_dict": {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()},
        "computekit": {"format": 1, "arch": {"name": arch.name, "args": dict(arch.args)}, **metadata},
    }
    save_archive(document, Path(path))


def save_archive(document: Any, path: Path) -> None:
    """``torch.save`` to ``path``, without the file's name in the archive; a full disk is an OSError."""
    import torch

    with path.open("wb") as stream:  # torch would write the name of a file, not that of a stream, into the archive
        try:
            torch.save(document, stream)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # a full disk, hidden by torch's complaint about the archive
                raise error.__context__ from error
            raise


def load_module(
    path: str | Path,
    arch: ArchRef | None = None,
    *,
    trust_pickle: bool = False,
) -> tuple[nn.Module, ArchRef, dict[str, Any]]:
    """A module in eval mode on the CPU with the weights of ``path``, its architecture, and the file's metadata.

    ``arch`` overrides or supplies the architecture for a file that does not remember one. A file that holds its own
    program (TorchScript, an exported program, a trusted pickled module) is run as that unless ``arch`` is given.

    Raises:
        FileProblem: the file remembers no architecture, or one that it takes trust to call.
    """
    from .formats import open_model

    source = open_model(path, trust_pickle=trust_pickle)
    if arch is None:
        program = source.program(trust_pickle)
        if program is not None:
            kind = type(program)
            return program, ArchRef(f"{kind.__module__}:{kind.__qualname__}"), source.metadata
        arch = _remembered(source, trust_pickle)
    architecture = arch

    def weighted() -> nn.Module:
        module = build(architecture)
        load_weights(module, source)
        return module.eval()

    return _run_as_asked(source, weighted), arch, source.metadata


def _run_as_asked(source: ModelFile, weighted: Callable[[], nn.Module]) -> nn.Module:
    """The module that runs the file: what ``weighted`` gives, or what the runtime makes that the file asks for.

    Raises:
        FileProblem: no plugin has that runtime.
    """
    runtime = (source.metadata.get("compression") or {}).get("runtime")
    if runtime is None:
        return weighted()
    known = host.current().runtimes
    name = str(runtime.get("name") if isinstance(runtime, dict) else runtime)
    if name not in known:
        raise FileProblem(
            source.path, f"is run by {name!r}, which no plugin here has", "install the plugin that it was made with"
        )
    return known[name].load(source, weighted)


def _remembered(source: ModelFile, trust_pickle: bool) -> ArchRef:
    """The architecture that the file names.

    A file from anywhere must not name ``os:system``: what is called without trust is a registered architecture, an
    ``nn.Module`` class, or a function that is declared to return one.
    """
    found = source.arch
    if found is None:
        raise FileProblem(source.path, "holds weights without code", "say which architecture with --arch")
    arch = ArchRef(found["name"], found["args"])
    if ":" in arch.name and not trust_pickle and not _makes_modules(import_object(arch.name, "architecture")):
        raise FileProblem(
            source.path,
            f"wants to call {arch.name}, which is not declared to return a torch module",
            f"if you trust it, say --arch {arch.name}",
        )
    return arch


def _makes_modules(factory: Any) -> bool:
    from torch import nn

    try:
        made = factory if isinstance(factory, type) else typing.get_type_hints(factory).get("return")
    except (NameError, TypeError, AttributeError):
        return False
    return isinstance(made, type) and issubclass(made, nn.Module)


def load_into(module: nn.Module, path: str | Path, *, trust_pickle: bool = False) -> nn.Module:
    """Put the weights of the file ``path`` into ``module`` and return it in eval mode.

    Compressed weights stay compressed in memory: see `compressed_layers`. For a file that asks for a runtime,
    what comes back is what that makes of the module.

    Raises:
        FileProblem: the file is no model file, or its weights do not fit the module.
    """
    from .formats import open_model

    source = open_model(path, trust_pickle=trust_pickle)
    load_weights(module, source)
    return _run_as_asked(source, module.eval)


def load_weights(module: nn.Module, source: ModelFile) -> None:
    """Copy the weights of an open model file into ``module``; compressed ones stay compressed.

    Of several models in the file, and of prefixes such as ``module.``, the ones that fit the module are taken. A
    module for a pruned file takes the file's shapes.

    Raises:
        FileProblem: the file lacks weights of the module, has others (but for a folder), or has other shapes; or a
            weight is NaN.
    """
    from .compressed_layers import compress_parameter, places
    from .float_view import FloatView

    floats = FloatView(source)
    own = module.state_dict()
    names, unused = match_names(own, floats)
    for key in own:
        if key not in names:
            raise FileProblem(source.path, f"lacks {key!r}, which the architecture needs", "is it the right --arch?")
    unused = [name for name in unused if floats.tensors[name].dtype.is_floating_point]  # not position_ids and the like
    if unused and source.format != "folder":  # transformers leaves out what its class lacks, such as a BERT's pooler
        raise FileProblem(
            source.path, f"holds {unused[0]!r}, which the architecture does not have", "is it the right --arch?"
        )
    if source.metadata.get("pruned"):
        from .shapes import ShapesDoNotFit, shrink

        try:
            shrink(module, {key: floats.tensors[name].shape for key, name in names.items()})
        except ShapesDoNotFit as error:
            raise FileProblem(source.path, str(error)) from error
        own = module.state_dict()
    compression = source.metadata.get("compression") or {}
    activations = compression.get("activations")
    owners = places(module)
    state, filled, static = {}, set(), False
    for key, name in names.items():
        shape, wanted = floats.tensors[name].shape, tuple(own[key].shape)
        if shape != wanted:
            raise FileProblem(
                source.path,
                f"{name!r} has shape {list(shape)} where the architecture has {list(wanted)}",
                "check --arch-args",
            )
        if name not in floats.weights or key not in owners:
            state[key] = _without_nan(floats.load(name), name, source)
        elif owners[key] not in filled:
            weight = floats.quantized(name)
            _without_nan(weight.scale, name, source)
            rounded = activations.get(name) if isinstance(activations, dict) else activations
            compress_parameter(owners[key], weight, rounded)
            filled.add(owners[key])
            for buffer, tensor in floats.grids(name).items():
                owners[key][0][0].register_buffer(buffer, tensor)
                static = True
    module.load_state_dict(state, strict=False)  # that nothing is missing was seen above
    if static:
        from .int8_program import attach

        attach(module.eval())
    if "dtype" in compression:
        _compute_in(module, compression["dtype"], source)


def _compute_in(module: nn.Module, dtype: str, source: ModelFile) -> None:
    """Make ``module`` compute in a floating-point type of two bytes; it takes inputs of any, as its twin in fp32 does.

    Raises:
        FileProblem: the file asks for a type that is none of these.
    """
    import torch

    if dtype not in ("bfloat16", "float16"):
        raise FileProblem(source.path, f"wants to compute in {dtype!r}", "the file is damaged")
    wanted: torch.dtype = getattr(torch, dtype)

    def cast(value: Any) -> Any:
        return value.to(wanted) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(map(cast, args)), {key: cast(value) for key, value in kwargs.items()}

    # module.to(wanted) would take weights in float8, which are storage, for floats to compute in
    module._apply(lambda t: t.to(wanted) if t.is_floating_point() and t.dtype.itemsize > 1 else t)  # type: ignore[no-untyped-call]
    module.register_forward_pre_hook(before, with_kwargs=True)


def _without_nan(tensor: torch.Tensor, name: str, source: ModelFile) -> torch.Tensor:
    if tensor.is_floating_point() and bool(tensor.isnan().any()):
        raise FileProblem(source.path, f"{name!r} holds NaN", "the training that made it went wrong")
    return tensor


def match_names(own: Mapping[str, torch.Tensor], source: ModelFile) -> tuple[dict[str, str], list[str]]:
    """Which tensor of the file belongs to which key of a module's state_dict, and the tensors that nobody wants.

    Keys that the module ties may be missing from the file if one of their twins is there.
    """
    best: tuple[dict[str, str], list[str]] = ({}, [])
    for part in source.parts:
        plain = {n.removeprefix(part).replace("_orig_mod.", ""): n for n in source.tensors if n.startswith(part)}
        longest = max(own, key=len, default="")
        prefixes = [key.removesuffix(longest) for key in plain if key == longest or key.endswith(f".{longest}")]
        for prefix in ["", *prefixes]:
            found = {key: plain[prefix + key] for key in own if prefix + key in plain}
            if len(found) > len(best[0]) or not best[0]:
                rest = [n for key, n in plain.items() if key.startswith(prefix) and key.removeprefix(prefix) not in own]
                best = (found, rest)
    found, rest = best
    twins: dict[tuple[int, tuple[int, ...]], str] = {}
    for key, tensor in own.items():
        if key in found and tensor.numel():
            twins[tensor.data_ptr(), tuple(tensor.shape)] = found[key]
    for key, tensor in own.items():
        twin = twins.get((tensor.data_ptr(), tuple(tensor.shape)))
        if key not in found and twin is not None:
            found[key] = twin
    return found, rest
