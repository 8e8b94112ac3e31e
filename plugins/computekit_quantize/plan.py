"""What happens to which tensor: the options that ask for it, and the decisions, made from the file's header alone."""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from computekit import ComputekitError, UnknownName, options
from computekit.models import ModelFile, TensorInfo, roles

from . import backend as backends
from . import huggingface, schemes
from .schemes import Scheme

if TYPE_CHECKING:
    import torch

    from computekit.models.compressed import HalfWeight, QuantizedWeight
    from computekit.models.int8_program import Grids

    from .moments import Moments


_SMALLEST_GROUP = 8  # of 4-bit values: scales for fewer take as many bytes as they do


@dataclass(frozen=True)
class Treatment:
    """How one weight is stored and how its layer computes.

    ``group`` is how many values of a row share a scale (None: all of them). ``activations`` is "float", "dynamic" for
    a linear layer that rounds its inputs to 8 bits, a scale per token, or "static" for a layer that computes on grids
    chosen beforehand. With ``half_scales`` the scales of groups are stored in bfloat16; those of rows are few.
    """

    scheme: Scheme
    group: int | None
    activations: str = "float"
    half_scales: bool = False

    @property
    def word(self) -> str:
        """How it is called in messages and records: ``int8``, or ``int8 dynamic``."""
        return self.scheme.name if self.activations == "float" else f"{self.scheme.name} {self.activations}"

    @property
    def storage(self) -> Treatment:
        """The same weight in a layer that computes in floats."""
        return replace(self, activations="float")

    @property
    def milder(self) -> tuple[Treatment, ...]:
        """Treatments that do less harm, the nearest first: better scales, 8 bits for 4, layers in floats."""
        found = []
        if self.scheme == schemes.INT4:
            found.append(replace(self, scheme=schemes.INT4_MSE))
        if self.scheme.bits < 8:
            found.append(replace(self, scheme=schemes.INT8, group=None))
        if self.activations != "float":
            found.append(self.storage)
        return tuple(found)

    @property
    def finer(self) -> Treatment | None:
        """The same with half as many values to a scale; None where scales would take more than the values."""
        if self.scheme.bits >= 8 or self.group is None or self.group < 2 * _SMALLEST_GROUP:
            return None
        return replace(self, group=self.group // 2)

    def round(self, weight: torch.Tensor, name: str) -> QuantizedWeight | HalfWeight:
        """The integers and scales of ``weight`` (out, ...); raises compressed.NonFinite, which calls it ``name``."""
        return self._checked(weight, self.scheme.quantize(weight, self.scheme.bits, self.group, name), name)

    def round_stored(self, source: ModelFile, info: TensorInfo) -> QuantizedWeight | HalfWeight:
        """`round` for a weight of ``source``, which is read in pieces where the scheme allows it."""
        from computekit.models import compressed

        if info.transposed and self.scheme.bits < 16:
            return self.round(source.load(info.name).t().contiguous(), info.name)
        if not self.scheme.by_rows or info.numel <= compressed.CHUNK:
            return self.round(source.load(info.name), info.name)
        columns = math.prod(info.shape[1:])
        pieces = source.pieces(info.name, max(1, compressed.CHUNK // columns) * columns)
        return compressed.in_pieces(pieces, info.shape, lambda piece: self.round(piece, info.name))

    def fit(self, weight: torch.Tensor, moments: Moments, name: str) -> QuantizedWeight | HalfWeight:
        """The same with what is known of the inputs of the weight's layer, where the scheme uses that."""
        if self.scheme.calibrated is None:
            return self.round(weight, name)
        return self._checked(weight, self.scheme.calibrated(weight, moments, self.scheme.bits, self.group, name), name)

    def _checked(
        self, weight: torch.Tensor, result: QuantizedWeight | HalfWeight, name: str
    ) -> QuantizedWeight | HalfWeight:
        """What a scheme, perhaps a third party's, made of ``weight``, if it can stand in its place."""
        from computekit.models.compressed import HalfWeight, QuantizedWeight

        fault = ""
        if not isinstance(result, (QuantizedWeight, HalfWeight)):
            fault = f"a {type(result).__name__}, not a QuantizedWeight"
        elif isinstance(result, QuantizedWeight) and result.values.shape != weight.shape:
            fault = f"values of shape {tuple(result.values.shape)} for {tuple(weight.shape)}"
        elif isinstance(result, QuantizedWeight) and not bool(result.scale.isfinite().all()):
            fault = "scales that are not finite"
        if fault:
            raise ComputekitError(f"scheme {self.scheme.name!r} is at fault: for {name} it returned {fault}")
        if self.narrows(weight.dtype) and isinstance(result, QuantizedWeight):
            return result.with_half_scales()
        return result

    def narrows(self, dtype: torch.dtype) -> bool:
        """Whether the scales of a weight of ``dtype`` are stored in a narrower type."""
        return self.half_scales and self.group is not None and self.scheme.bits < 16 and dtype.itemsize > 2

    def scales(self, weights: Sequence[torch.Tensor], moments: Moments) -> torch.Tensor | None:
        """What the scheme wants the ``weights`` (out, columns), which read the same inputs, to be multiplied by."""
        if self.scheme.channel_scales is None:
            return None
        return self.scheme.channel_scales(
            [weight.cpu() for weight in weights], moments, lambda weight: self.round(weight, "weight").dequantize()
        )

    def bytes_of(self, info: TensorInfo) -> int:
        """Bytes that the weight ``info`` (out, ...) takes in the file."""
        from computekit.models import compressed

        scheme = self.scheme
        if scheme.bits == 16:
            return 2 * info.numel
        width = 2 if self.narrows(info.dtype) else info.dtype.itemsize
        return compressed.stored_bytes(info.outputs_first, width, self.group, scheme.bits, scheme.zero_points)


@dataclass(frozen=True)
class Decision:
    """The fate of one tensor, under all the names that it is tied to.

    ``kept`` is why it stays as it is, empty if ``treatment`` will be given to it; `keep` and `treat` change it.
    ``grids`` are those that the activations of its layer have where they are static.
    """

    info: TensorInfo
    names: tuple[str, ...]
    role: roles.Role
    kept: str
    treatment: Treatment
    grids: Grids | None = None

    @property
    def quantized(self) -> bool:
        return not self.kept

    @property
    def fate(self) -> str:
        """For a person: what becomes of it."""
        if not self.kept and self.treatment.scheme.bits == 16:
            return f"stored in {self.treatment.scheme.name}"
        computes = "" if self.treatment.activations == "float" else f", {self.treatment.activations} activations"
        return self.kept or f"quantized{computes}"

    @property
    def grid(self) -> str:
        """For a person: its scheme, and how many values share a scale where that is not a row."""
        size = self.group_size
        return self.treatment.scheme.name + (f" in groups of {size}" if size else "")

    @property
    def group_size(self) -> int | None:
        """How many values share a scale, in the end; None for all of a row."""
        from computekit.models import compressed

        columns, wanted = math.prod(self.info.outputs_first[1:]), self.treatment.group
        return None if wanted is None or wanted >= columns else compressed.group_size(columns, wanted)

    @property
    def bytes_after(self) -> int:
        """Bytes that it will take in the file."""
        if not self.quantized:
            return self.info.nbytes
        return self.treatment.bytes_of(self.info) + sum(tensor.nbytes for _, tensor in self.beside())

    def beside(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors that the file gets beside the weight, by name."""
        if not self.quantized or self.grids is None or self.treatment.activations != "static":
            return []
        return self.grids.store(self.info.name.rpartition(".")[0])

    @property
    def saved(self) -> int:
        """Bytes that quantizing this tensor saves."""
        return self.info.nbytes - self.bytes_after

    def keep(self, reason: str) -> Decision:
        """The same tensor, left as it is."""
        return replace(self, kept=reason)

    def treat(self, treatment: Treatment) -> Decision:
        """The same tensor, quantized as ``treatment`` says."""
        return replace(self, kept="", treatment=treatment)


@dataclass(frozen=True)
class Request:
    """What to do with weights, and with which: ``include`` and ``exclude`` are shell patterns over tensor names.

    Exclusion wins. Tensors that match ``wide`` get 8 bits. ``scheme`` is the name of a scheme, ``group_size`` None what
    suits it. ``rest`` is "bf16" or "fp16" for what is not quantized, and for the arithmetic around it; None leaves both
    as they are. ``scales`` is "bf16" where scales are stored in that. ``activations`` None is what suits the
    ``backend``. With the backend "auto", ``scheme`` may be empty: any of those that there are.
    """

    scheme: str
    group_size: int | None = None
    activations: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    rest: str | None = None
    scales: str | None = None
    backend: str = "torch"

    @functools.cached_property
    def treatment(self) -> Treatment:
        """What every weight is asked to get; raises UnknownName for the scheme, click.UsageError for what clashes."""
        scheme = schemes.get(self.scheme)
        group = self.group_size or scheme.default_group
        activations = self.activations or "float"
        per_row = scheme.bits == 8 and group is None
        if activations != "float" and not (per_row and (scheme.values == "int" or activations == "dynamic")):
            raise click.UsageError(f"--activations {activations} needs 8-bit weights with one scale per row: --int8")
        if self.activations == "static" and self.rest is not None:
            raise click.UsageError("--rest does not go with --activations static, whose layers take and give float32")
        if self.scales is not None and group is None:
            raise click.UsageError(f"--scales: {scheme.name} has no groups whose scales would take room")
        return Treatment(scheme, group, activations, self.scales is not None)

    def check_used(self) -> None:
        """click.UsageError for options that change nothing with this scheme."""
        scheme = schemes.get(self.scheme)
        if scheme.bits == 16 and self.group_size is not None:
            raise click.UsageError(f"--group-size: {scheme.name} has no scales that values could share")
        if scheme.bits == 16 and self.rest not in (None, scheme.name):
            raise click.UsageError(f"--rest {self.rest}: {scheme.name} is the type of all weights already")
        if scheme.bits >= 8 and self.wide:
            raise click.UsageError(f"--wide gives tensors 8 bits, and {scheme.name} has {scheme.bits} for all of them")

    @functools.cached_property
    def half(self) -> Treatment | None:
        """The treatment in two bytes of what is not quantized, if there is one."""
        if self.treatment.scheme.bits == 16:
            return self.treatment
        return None if self.rest is None else Treatment(schemes.get(self.rest), None)


def _request(int8: bool, int4: bool, scheme: str | None, backend: str | None, **others: Any) -> Request:
    """The request that the options name; click.UsageError for no scheme and for several."""
    named = {name for name, given in (("int8", int8), ("int4", int4), (scheme, scheme)) if given and name}
    if not named and backend != backends.AUTO:
        raise click.UsageError("say how to quantize: --int8, --int4 or --scheme NAME")
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(sorted(named))} are two schemes; choose one of --int8, --int4, --scheme")
    return Request(named.pop() if named else "", backend=backend or "torch", **others)


request_options = options.gathered(
    "request",
    _request,
    click.option("--int8", is_flag=True, help="8-bit integers, one scale per output channel."),
    click.option("--int4", is_flag=True, help="4-bit integers, a scale per group of values."),
    click.option("--scheme", type=options.HostNames("computekit_quantization_schemes", "name"),
                 help="A scheme by name; plugins add more."),
    click.option("--group-size", type=click.IntRange(min=1),
                 help="Values that share a scale.  [default: int8 a row, int4 32]"),
    click.option("--activations", type=click.Choice(["float", "dynamic", "static"]),
                 help="dynamic: linear layers compute in 8-bit integers on the CPU, with a scale per token; "
                      "static: convolutions too, with scales from --calibration. Needs --int8.  "
                      "[default: float; what is fastest for onnx and openvino]"),
    backends.option,
    click.option("--include", multiple=True, metavar="PATTERN", help="Quantize these tensors too, e.g. '*.expert.*'."),
    click.option("--wide", multiple=True, metavar="PATTERN",
                 help="8 bits for these tensors, e.g. an embedding that is the output layer too."),
    click.option("--rest", type=click.Choice(["bf16", "fp16"]),
                 help="Store what is not quantized in this type, and compute in it.  [default: as it is]"),
    click.option("--scales", type=click.Choice(["bf16"]),
                 help="Store the scales of groups in this type: two bytes instead of four in a float32 model.  "
                      "[default: the type of the weights]"),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave these tensors as they are."),
    section="What to store",
)  # fmt: skip
"""Options that become one argument ``request``."""


def make(source: ModelFile, request: Request) -> list[Decision]:
    """One decision per tensor of ``source``, in file order; tied names share one.

    Raises:
        UnknownName: a pattern matches no tensor.
    """
    tensors = source.tensors
    for pattern in (*request.include, *request.exclude, *request.wide):
        if not fnmatch.filter(tensors, pattern):
            raise UnknownName("tensor", pattern, tensors, "(patterns: * matches any characters)")
    treatment, in_folder = request.treatment, huggingface.is_folder(source)
    if in_folder and treatment.group is not None:
        weights = [info for info in tensors.values() if roles.of(info, tensors) in roles.WEIGHTS]
        rounded = [info for info in weights if not _matches([info.name], request.exclude)]
        treatment = replace(treatment, group=huggingface.common_group(rounded, treatment.group))
    return [_decide(names, tensors, request, treatment, in_folder) for names in _tied(tensors)]


def _decide(
    names: tuple[str, ...], tensors: Mapping[str, TensorInfo], request: Request, treatment: Treatment, in_folder: bool
) -> Decision:
    info = tensors[names[0]]
    every = [roles.of(tensors[name], tensors) for name in names]
    role = next((role for role in every if role in roles.WEIGHTS), every[0])
    matrix = len(info.shape) > 1 and info.numel > 0
    if _matches(names, request.wide):
        treatment = replace(treatment, scheme=schemes.INT8, group=None)
    if role == "linear" and len(info.shape) > 2 and treatment.group is None:
        treatment = replace(treatment, group=info.shape[-1])  # stacked matrices, as in LSTMs of ONNX
    kept = ""
    if not info.dtype.is_floating_point or info.dtype.itemsize < 2:
        kept = f"{str(info.dtype).removeprefix('torch.')} values"
    elif not matrix:
        kept = "a vector" if len(info.shape) == 1 and info.numel else "a single number" if info.numel else "empty"
    elif _matches(names, request.exclude):
        kept = "excluded"
    elif role not in roles.WEIGHTS and not _matches(names, request.include):
        kept = "ambiguous (--include quantizes it)" if role == "ambiguous" else f"{role} tensor"
    elif treatment.bytes_of(info) >= info.nbytes:
        kept = "would not be smaller"
    elif in_folder:
        kept = huggingface.unreadable(info, treatment.group)
    if request.half is not None and (kept or request.treatment is request.half):
        narrower = info.dtype.is_floating_point and info.dtype.itemsize > 2 and not _matches(names, request.exclude)
        return Decision(info, names, role, "" if narrower else kept, request.half)
    if treatment.activations == "static" and role not in ("linear", "conv"):
        treatment = replace(treatment, activations="float")
    return Decision(info, names, role, kept, treatment)


def _tied(tensors: Mapping[str, TensorInfo]) -> list[tuple[str, ...]]:
    """Names grouped by the bytes that they share."""
    groups: dict[object, list[str]] = {}
    for name, info in tensors.items():
        groups.setdefault(name if info.storage is None else ("storage", info.storage), []).append(name)
    return [tuple(group) for group in groups.values()]


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)
