"""Backends: what runs a quantized model. Plugins add theirs with the hook ``computekit_quantization_backends``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import ComputekitError, MissingExtra, UnknownName, options

if TYPE_CHECKING:
    import torch
    from torch import nn

    from computekit import ModelFile

AUTO = "auto"


@dataclass(frozen=True)
class Export:
    """What a backend makes a program of its own from.

    ``module`` is the original in float32, in eval mode on the CPU. ``example`` are its positional arguments for 2
    samples: tensors, and numbers that are the same in every call. ``calibration`` (N, ...) are real samples of the
    first, None where there are none: see ``inputs``. ``bits`` are those of the weights, ``activations`` how layers
    compute ("float", "dynamic", "static"), and ``half`` "bf16" or "fp16" where what stays in floats computes in that.
    ``floats`` are the paths in ``module`` of layers that are not to be quantized.
    """

    module: nn.Module
    example: tuple[Any, ...]
    calibration: torch.Tensor | None
    bits: int
    activations: str
    half: str | None
    floats: tuple[str, ...] = ()

    def inputs(self, samples: torch.Tensor) -> dict[str, torch.Tensor]:
        """All tensors that go into the module with ``samples`` of the first, by name: the others are the example's."""
        import torch

        from . import signature
        from .samples import repeated

        named = signature.inputs_of(
            self.module, samples, *repeated(self.example[1:], len(self.example[0]), len(samples))
        )
        return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


@dataclass(frozen=True)
class Backend:
    """Something that runs models.

    ``load(source, build)`` is that of `computekit.Runtime`. A backend with ``export`` runs a program of its own, which
    lies beside the model file: ``export(job, stem)`` writes it to files that are called ``stem`` and an ending, and
    returns plain data that ``load`` finds, with the files, in the file's metadata; see `programs`. One without runs the
    model file's own module.

    ``extra`` is the extra of computekit that it needs, and ``packages`` the modules of it that must be there.
    ``activations`` are the ways in which its layers can compute, the fastest first; "static" needs calibration data.
    ``bits`` are those that its weights may have. ``endings`` are what the names of its files end with: where others
    have such names, that is found before the work. ``partial`` says that its programs leave the layers in floats that
    ``job.floats`` names.
    """

    name: str
    summary: str
    load: Callable[[ModelFile, Callable[[], nn.Module]], nn.Module]
    export: Callable[[Export, Path], dict[str, Any]] | None = None
    extra: str = ""
    packages: Sequence[str] = ()
    activations: Sequence[str] = ("static", "dynamic", "float")
    bits: Sequence[int] = (4, 8, 16)
    endings: Sequence[str] = ()
    partial: bool = False

    @property
    def missing(self) -> str:
        """The module that it needs and that is not installed; empty if all are."""
        from importlib.util import find_spec

        return next((name for name in self.packages if find_spec(name) is None), "")

    def check_present(self) -> None:
        """Raise MissingExtra if a package is not installed."""
        if self.missing:
            raise MissingExtra(self.missing, self.extra, f"--backend {self.name}")

    @contextmanager
    def answerable(self) -> Iterator[None]:
        """Whatever breaks in it becomes a ComputekitError, of one line."""
        try:
            yield
        except (ComputekitError, click.ClickException):
            raise
        except Exception as error:  # anybody's code, which may fail in any way
            line = (str(error).splitlines() or [""])[0][:200]
            raise ComputekitError(
                f"--backend {self.name} cannot run the result: {type(error).__name__}: {line}"
            ) from error

    def way(self, activations: str | None, bits: int, calibrated: bool) -> str:
        """How its layers shall compute: as asked, else the fastest way that needs no more than there is.

        Raises:
            ComputekitError: it cannot do that.
        """
        if bits not in self.bits:
            raise ComputekitError(f"--backend {self.name} has no weights of {bits} bits, only of {_either(self.bits)}")
        if bits != 8:
            return "float"
        possible = [word for word in self.activations if calibrated or word != "static"]
        if activations is None and possible:
            return possible[0]
        if activations is None or activations not in self.activations:
            raise ComputekitError(
                f"--backend {self.name} has no layers with {activations or 'float'} activations, only "
                f"{_either(self.activations)}"
            )
        return activations


def _either(words: Iterable[object]) -> str:
    return " or ".join(map(str, words))


@computekit.hookspec
def computekit_quantization_backends() -> Iterable[Backend]:  # type: ignore[empty-body]
    """Add ways to run quantized models, usable as ``computekit quantize --backend NAME``.

    Example::

        from computekit_quantize import Backend
        from computekit_quantize.backend import computekit_quantization_backends

        def load(source: computekit.ModelFile, build: Callable[[], nn.Module]) -> nn.Module:
            return build().to(memory_format=torch.channels_last)

        @implements(computekit_quantization_backends)
        def backends() -> list[Backend]:
            return [Backend("channels-last", "convolutions with the channels last", load)]
    """


def known() -> dict[str, Backend]:
    """Every registered backend by name, the first plugin to give a name keeps it."""
    from computekit import host

    return host.current().named("computekit_quantization_backends", Backend, "backend")


def get(name: str) -> Backend:
    """The backend called ``name``; raises UnknownName with the nearest ones."""
    backends = known()
    if name not in backends:
        raise UnknownName("backend", name, [*backends, AUTO])
    return backends[name]


option = click.option(
    "--backend",
    type=options.HostNames("computekit_quantization_backends", "name"),
    help="What runs the result: torch, compile, onnx, openvino, or one of a plugin; auto times them all, beside the "
    "original, and keeps the fastest that computes the same.  [default: torch]",
)
