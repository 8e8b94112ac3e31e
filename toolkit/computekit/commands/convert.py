"""``computekit convert``: a model file of one kind as another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import options

if TYPE_CHECKING:
    from ..steps import StepRun


@click.command()
@options.model
@click.argument("target", type=click.Path(path_type=Path), required=False)
@click.option("--dtype", type=click.Choice(["fp32", "fp16", "bf16"]), help="Number type of all floating-point weights.")
@click.option("--strip-optimizer", is_flag=True, help="Leave out the states of optimizers and schedulers.")
@click.option("--bare", is_flag=True, help="Write the weights alone, without the rest of the checkpoint.")
@click.option("--part", metavar="NAME", help="Of a checkpoint with several models, take this one, such as ema.")
@click.option("--strip-prefix", "prefixes", multiple=True, metavar="PREFIX", help="Take PREFIX off names, e.g. module.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="config.json for a folder made from bare weights.",
)
@options.trust_pickle
@options.step
def convert(
    run: StepRun,
    model: Path,
    target: Path | None,
    dtype: str | None,
    strip_optimizer: bool,
    bare: bool,
    part: str | None,
    prefixes: tuple[str, ...],
    config: Path | None,
    trust_pickle: bool,
) -> None:
    """Write a model file as another kind: TARGET's name says which (.pt, .safetensors, .index.json, or a folder).

    The default is MODEL's name with .safetensors (.pt for safetensors). A checkpoint that stays a .pt file keeps
    everything around its weights, except what the options leave out; a folder in Hugging Face's layout keeps its other
    files. GGUF, TorchScript, ONNX and .pt2 files give their weights, GGUF's as floats; only an ONNX model can become
    another one. A folder made from a GGUF decoder of a known architecture runs in transformers, tokenizer included. One
    tensor is in memory at a time.

    \b
    Example:
      computekit convert checkpoint.pt smaller.pt --strip-optimizer
      computekit convert checkpoint.pt model.safetensors --dtype bf16 --strip-prefix module.
      computekit convert model.gguf model/
    """
    run.input(model)  # hashed from now on, while torch is imported
    from .. import files
    from ..models import gguf_decoder, open_model, program_files
    from ..models.conversion import DTYPES, Conversion, convert, kind_of
    from ..models.float_view import FloatView
    from ..models.huggingface import read_config
    from ..models.roles import count_parameters

    wanted = run.output(target or _default(model))
    if target not in (None, wanted):
        raise click.UsageError(f"TARGET is {target} and --output is {wanted}: give one of them")
    how = Conversion(
        dtype=DTYPES[dtype] if dtype else None,
        strip_prefixes=prefixes,
        strip_optimizer=strip_optimizer,
        bare=bare,
        part=part,
        config=read_config(config) if config else {},
    )
    source = open_model(model, trust_pickle=trust_pickle)
    if program := program_files.listed(source):
        run.say(f"{', '.join(program)} runs {model.name} and is not converted: the new file is run by its own code")
    kind = kind_of(wanted, folder=bool(config) or source.format == "folder" or gguf_decoder.runs(source))
    if kind.name == "folder" and not config and gguf_decoder.runs(source):
        source = gguf_decoder.GgufDecoder(source)
        how = replace(how, config=source.config)
    with run.writing(wanted) as temporary:
        convert(source, temporary, kind, how)
        if isinstance(source, gguf_decoder.GgufDecoder):
            gguf_decoder.write_tokenizer(model, temporary)
        size = files.size_bytes(temporary)
    run.put("file_bytes", size, "B")
    run.put("parameters", count_parameters(FloatView(open_model(wanted))), "1", method="values in the file's weights")


def _default(model: Path) -> Path:
    """Where to write without TARGET; a dot in a folder's name begins no suffix."""
    if model.is_dir():
        return model.with_name(f"{model.name}.safetensors")
    name = model.name.removesuffix(".index.json")
    if name.endswith(".safetensors"):
        return model.with_name(f"{name.removesuffix('.safetensors')}.pt")
    return model.with_suffix(".safetensors")
