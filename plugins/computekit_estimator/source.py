"""What the user wants counted: a model file, an architecture, a Hugging Face config, or plain dimensions."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import computekit
from computekit import ComputekitError, FileProblem

from . import experts, transformer
from .transformer import Transformer

if TYPE_CHECKING:
    from torch import nn

    from computekit.inputs import Input
    from computekit.models import ArchRef


TOKENS = 2048
"""Tokens of the sample that is counted, where neither the user nor the model sets fewer."""
_ALIKE = 0.05
"""How far the parameters by dimensions may be from those of the built model; beyond it the layers are others."""
_REBUILDABLE = 250_000_000
"""Parameters up to which a config's model is built with real weights where it cannot be counted without: 3 GB with a
copy and gradients."""


@dataclass
class Subject:
    """A model to estimate. ``module`` is None for weights without code and for plain dimensions.

    ``inputs`` and ``kwargs`` make one forward call for one sample. ``rebuild`` makes the module with real weights, for
    code that cannot run without values. ``all_kwargs`` is for code that wants more than the main input. ``shorten``
    puts a sample of so many tokens in their place. ``how`` says how the count was had, if not as usual, and ``sample``
    what ``inputs`` are. ``towers`` are the methods that make tokens of an image or a sound, where the text runs alone,
    with the forms in which each may take one; ``tower_notes`` say what became of it. ``experts`` are those of a layer,
    and of a token; ``experts_note`` says that the code runs them all.
    """

    label: str
    sha256: str | None = None
    module: nn.Module | None = None
    inputs: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    all_kwargs: Mapping[str, Any] = field(default_factory=dict)
    dims: Transformer | None = None
    parameters: int | None = None
    weight_bytes: int | None = None
    why_no_flops: str = ""
    tokens: int | None = None
    rebuild: Callable[[], nn.Module] | None = None
    shorten: Callable[[int], None] | None = None
    how: str = ""
    sample: str = "one sample"
    experts: tuple[int, int] = (0, 0)
    towers: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    tower_notes: dict[str, str] = field(default_factory=dict)
    experts_note: str = ""

    def notes(self) -> list[str]:
        """What is to be said of the count."""
        return [note for note in (*self.tower_notes.values(), self.experts_note) if note]


def from_file(path: Path, arch: ArchRef | None, shapes: tuple[Input, ...] | None, trust_pickle: bool) -> Subject:
    """A model file; one without code and without ``arch`` still has parameters and bytes."""
    from computekit import files
    from computekit.models import open_model, roles
    from computekit.models.float_view import FloatView

    subject = Subject(label=path.stem or path.name, sha256=files.sha256(path))
    file = open_model(path, trust_pickle=trust_pickle)
    distinct = {info.storage if info.storage is not None else name: info for name, info in file.tensors.items()}
    subject.parameters = roles.count_parameters(FloatView(file))
    subject.weight_bytes = sum(info.nbytes for info in distinct.values())
    if path.is_dir() and (path / "config.json").exists():
        _add_config(subject, path / "config.json", _main(path, shapes))
        return subject
    try:
        if arch is None and file.arch is None and file.program(trust_pickle) is None:
            subject.why_no_flops = "the file holds weights without code; give --arch, or --config for a transformer"
            return subject
        module, arch, _ = computekit.load_module(path, arch, trust_pickle=trust_pickle)
    except FileProblem as error:
        if arch is not None:
            raise
        subject.why_no_flops = str(error)  # parameters and bytes are known all the same
        return subject
    _add_module(subject, module, arch, shapes)
    return subject


def from_arch(arch: ArchRef, shapes: tuple[Input, ...] | None) -> Subject:
    """A fresh module of an architecture, on the meta device where its factory allows."""
    import torch

    from computekit import models

    try:
        with torch.device("meta"):
            module = models.build(arch)
    except ComputekitError:
        raise
    except Exception:  # a factory that computes on its weights
        module = models.build(arch)
    subject = Subject(label=arch.name, rebuild=lambda: models.build(arch))
    _add_module(subject, module, arch, shapes)
    return subject


def from_config_file(path: Path, shapes: tuple[Input, ...] | None) -> Subject:
    """A Hugging Face ``config.json`` (or the folder that holds it): built on the meta device, no weights needed."""
    file = path / "config.json" if path.is_dir() else path
    subject = Subject(label=path.resolve().parent.name if path.name == "config.json" else path.stem)
    _add_config(subject, file, _main(file, shapes))
    return subject


def from_dimensions(dims: Transformer) -> Subject:
    """Plain dimensions: exact formulas, nothing is built."""
    return Subject(label=dims.name, dims=dims, parameters=dims.parameters, tokens=dims.seq)


def _add_module(subject: Subject, module: nn.Module, arch: ArchRef, shapes: tuple[Input, ...] | None) -> None:
    from computekit.models.compressed_layers import count_parameters

    subject.module = module
    subject.parameters = count_parameters(module)
    if subject.weight_bytes is None:
        subject.weight_bytes = sum(p.nbytes for p in (*module.parameters(), *module.buffers()))
    from computekit.models.examples import example_inputs

    try:
        subject.inputs = example_inputs(module, arch, shapes=shapes)
    except ComputekitError as error:
        subject.why_no_flops = str(error)
        return
    first = subject.inputs[0]
    if shapes is None and getattr(first, "shape", ())[:1] not in ((), (1,)):
        subject.sample = f"{len(first)} samples at once, as the program was exported"
    if hasattr(first, "shape") and not first.is_floating_point():
        subject.tokens = int(first.shape[-1])


def _main(path: Path, shapes: tuple[Input, ...] | None) -> tuple[int, ...] | None:
    """The shape of one sample, batch included, of the main input of a config's model."""
    if shapes is None:
        return None
    if len(shapes) > 1:
        raise FileProblem(path, "is a config, whose other inputs follow from the main one", "give one --input-shape")
    return (1, *shapes[0].shape)


def _add_config(subject: Subject, file: Path, shape: tuple[int, ...] | None) -> None:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileProblem(file, "is not a JSON config", "give the config.json of a Hugging Face model") from error
    if not isinstance(config, dict):
        raise FileProblem(file, "is JSON but not a config", "give the config.json of a Hugging Face model")
    todo = "give a config that names what it lacks, or the layers and widths of a transformer"
    logging.disable(logging.WARNING)  # what the package's optional dependencies log on import is no concern of users
    try:
        _build_config(subject, config, shape)
    except ModuleNotFoundError:  # without transformers the dimensions alone must do
        todo = "pip install 'computekit[hf]'"
    except Exception as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        subject.module, subject.why_no_flops = None, f"transformers cannot build it: {said}"
    finally:
        logging.disable(logging.NOTSET)
    if subject.module is None:
        try:
            subject.dims = transformer.from_config(config, subject.label)
        except ComputekitError as error:
            subject.why_no_flops = subject.why_no_flops or str(error)
    if subject.module is None and subject.dims is not None:
        subject.parameters = subject.parameters or subject.dims.parameters
        subject.tokens = shape[-1] if shape else min(subject.dims.seq, TOKENS)
        subject.dims = replace(subject.dims, seq=subject.tokens)
    if subject.module is None and subject.dims is None:
        raise FileProblem(file, f"cannot be estimated ({subject.why_no_flops})", todo)


def _build_config(subject: Subject, config: dict[str, Any], shape: tuple[int, ...] | None) -> None:
    """Build the config's model on the meta device and make one sample for it."""
    import torch
    from torch import nn
    from transformers import AutoConfig

    hf = AutoConfig.for_model(**config)
    with contextlib.suppress(ComputekitError):  # a model that is no transformer has no dimensions
        subject.dims = transformer.from_config(hf.to_dict(), subject.label)

    def build() -> Any:
        return _model_class(config)(hf).eval()

    with torch.device("meta"):
        module = build()
    if subject.parameters is None:
        subject.parameters = sum(p.numel() for p in module.parameters())
        subject.weight_bytes = sum(p.nbytes for p in module.parameters())
    if subject.dims is not None and subject.dims.experts:
        module = module.to(torch.bfloat16)  # products over groups of experts exist in bf16 only
    subject.experts = experts.of_config(hf)
    if subject.parameters <= _REBUILDABLE:
        subject.rebuild = build
    subject.module, subject.inputs = module, ()
    if type(module).forward is nn.Module.forward:
        parts = ", ".join(name for name, _ in module.named_children())
        subject.inputs, subject.why_no_flops = None, f"the whole has no forward pass, only its parts: {parts}"
        return
    _give_sample(subject, hf, shape)
    if subject.tokens is not None:
        subject.shorten = lambda tokens: _shorten(subject, hf, tokens)
    odd = subject.dims is not None and abs(subject.dims.parameters / subject.parameters - 1) > _ALIKE
    if subject.tokens is None or hf.is_encoder_decoder or odd:
        subject.dims = None  # images, audio, encoder-decoders and hybrids have other dimensions than these
    elif subject.dims is not None:
        subject.dims = replace(subject.dims, seq=subject.tokens)


def _give_sample(subject: Subject, hf: Any, shape: tuple[int, ...] | None) -> None:
    """Give ``subject`` a sample of this shape of the main input, or of the length that the config says."""
    from . import samples

    module: Any = subject.module
    subject.kwargs, subject.tokens = samples.main_inputs(module, hf, shape)
    subject.all_kwargs = samples.all_inputs(module, hf, subject.kwargs)
    if "input_ids" not in subject.kwargs:
        return
    subject.towers = {
        name: make(hf, inspect.signature(getattr(module, name)).parameters)
        for name, make in (("get_image_features", samples.images), ("get_audio_features", samples.sounds))
        if hasattr(module, name)
    }
    if (
        "pixel_values" in subject.all_kwargs and not subject.towers
    ):  # the image is part of the same pass, where it is not in the place of text
        subject.kwargs, subject.all_kwargs = subject.all_kwargs, subject.kwargs


def _shorten(subject: Subject, hf: Any, tokens: int) -> None:
    """Give ``subject`` a sample of ``tokens`` tokens."""
    _give_sample(subject, hf, (1, tokens))
    if subject.dims is not None:
        subject.dims = replace(subject.dims, seq=tokens)


def _model_class(config: dict[str, Any]) -> Any:
    """What builds the model of a config: the class it names, else what transformers has for its type."""
    import transformers
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    named = next(iter(config.get("architectures") or []), "")
    if getattr(transformers, named, None) is not None:
        return getattr(transformers, named)
    kind = CONFIG_MAPPING[config["model_type"]]
    if kind in MODEL_MAPPING:
        several = MODEL_MAPPING[kind]
        return several[0] if isinstance(several, (list, tuple)) else AutoModel.from_config
    # a part of a larger model, "align_text_model", or a model with its head alone: its class is named like its config
    name = kind.__name__.removesuffix("Config")
    for found in (f"{name}Model", f"{name}For.*", name):
        own = next((getattr(transformers, each) for each in dir(transformers) if re.fullmatch(found, each)), None)
        if own is not None:
            return own
    return AutoModelForCausalLM.from_config


@contextlib.contextmanager
def one_sequence() -> Iterator[None]:
    """Spare transformers' masks their look at the values: the sample is one sequence, without padding."""
    if "transformers" not in sys.modules:
        yield
        return
    from transformers import PreTrainedModel, masking_utils

    answers: tuple[tuple[Any, str, Any], ...] = (
        (masking_utils, "find_packed_sequence_indices", None),
        (masking_utils, "fast_all", True),
        (masking_utils, "_ignore_bidirectional_mask_sdpa", True),
        (PreTrainedModel, "warn_if_padding_and_no_attention_mask", None),
    )
    with contextlib.ExitStack() as stack:
        for owner, name, answer in answers:
            if hasattr(owner, name):  # the names are private
                stack.enter_context(mock.patch.object(owner, name, return_value=answer))
        yield
