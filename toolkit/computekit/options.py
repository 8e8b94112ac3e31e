"""Shared click options, each defined once, and `step`, which turns a function into a step's command.

@click.command()
@options.model
@options.data()
@options.step
def mine(run: StepRun, model: Path, data: str | None) -> None: ...
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from .errors import nearest
from .inputs import InputShapes

if TYPE_CHECKING:
    from .text import Window

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class InputPath(click.Path):
    """A path that must exist; ``holds`` is "model" or "record", so that pipelines know what to put there."""

    def __init__(self, holds: str) -> None:
        super().__init__(path_type=Path)
        self.holds = holds
        self.name = holds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from .errors import FileProblem
        from .files import check_regular

        if not str(value):
            self.fail(f"an empty name is no {self.holds} file", param, ctx)
        path = Path(value)
        if self.holds == "model":  # records may come through a pipe: they are read once
            check_regular(path, "model file")
        if not path.exists():
            siblings = [p.name for p in path.parent.iterdir() if p.exists()] if path.parent.is_dir() else []
            near = nearest(path.name, siblings)
            hint = f"did you mean {path.parent / near[0]}?" if near else "check the name and the folder"
            raise FileProblem(path, f"no such {self.holds} file", hint)
        if path.name in ("", ".."):  # the folder one stands in: results are named after it, and lie beside it
            own_name = path.resolve().name
            path = path / ".." / own_name if own_name else path
        return path


class DeviceName(click.ParamType[str]):
    """A name that a device can have; whether there is such a device shows when a step asks for it."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", str(value)):
            self.fail(f"{value!r} is not auto, cpu, cuda, cuda:N or mps", param, ctx)
        return str(value)


class HostNames(click.ParamType[str]):
    """A name that plugins provide, or something else that the step resolves itself.

    ``source`` is an attribute of the host ("datasets"), or a hook that a plugin declared
    ("computekit_quantization_schemes") and whose results have a name and a summary. The name completes in the shell
    and stays a plain string: the check happens where it is used, because it may also be a file or
    ``package.module:callable``.
    """

    def __init__(self, source: str, metavar: str) -> None:
        self.source = source
        self.name = metavar

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from . import host

        registry = host.current()
        offered: Iterable[Any] = (
            registry.collect(self.source, object)
            if self.source.startswith("computekit_")
            else getattr(registry, self.source).values()
        )
        return [CompletionItem(item.name, help=item.summary) for item in offered if item.name.startswith(incomplete)]


class Sizes(click.ParamType[tuple[int, ...]]):
    """Whole numbers above zero: ``1,8,64`` or, as shapes are often written, ``3x224x224``."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        text = str(value).strip().replace("x", ",")
        try:
            sizes = tuple(int(part) for part in text.split(",")) if text else ()
        except ValueError:
            sizes = (0,)
        if any(size < 1 for size in sizes):
            self.fail(f"{value!r} is not a list of whole numbers above zero, such as 3,224,224", param, ctx)
        return sizes


class Number(click.FloatRange):
    """A finite number within bounds; unlike click.FloatRange it refuses NaN."""

    name = "number"

    def __init__(
        self,
        above: float = -math.inf,
        at_least: float = -math.inf,
        below: float = math.inf,
        at_most: float = math.inf,
    ) -> None:
        self.above, self.at_least, self.below, self.at_most = above, at_least, below, at_most
        low, high = max(above, at_least), min(below, at_most)
        super().__init__(
            low if math.isfinite(low) else None, high if math.isfinite(high) else None, above >= at_least,
            below <= at_most,
        )  # fmt: skip

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not (number > self.above and number >= self.at_least and number < self.below and number <= self.at_most):
            self.fail(f"{value!r} is not a finite number {self._range()}", param, ctx)
        return number

    def _range(self) -> str:
        bounds = [("above", self.above), ("of at least", self.at_least), ("below", self.below),
                  ("of at most", self.at_most)]  # fmt: skip
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound))


class WindowSize(click.ParamType["Window"]):
    """``LENGTH`` or ``LENGTH/STRIDE``, in tokens; see `computekit.text.Window`."""

    name = "window"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Window:
        from .text import Window

        if isinstance(value, Window):
            return value
        length, slash, stride = value.partition("/")
        if not length.isdecimal() or (slash and not stride.isdecimal()):
            self.fail(f"{value!r} is not LENGTH or LENGTH/STRIDE, such as 256 or 256/128", param, ctx)
        window = Window(int(length), int(stride) if slash else None)
        if window.length < 2 or window.stride == 0 or (window.stride or 0) > window.length:
            self.fail("a window has at least 2 tokens, and a stride from 1 to its length", param, ctx)
        return window


class Arguments(click.ParamType[dict[str, Any]]):
    """``key=value,key=value`` or a JSON object; values are JSON where they parse as JSON, else strings."""

    name = "arguments"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        text = value.strip()
        if text.startswith("{"):
            try:
                return dict(json.loads(text))
            except ValueError as error:
                self.fail(f"{value!r} is not a JSON object: {error}", param, ctx)
        pairs: dict[str, Any] = {}
        for part in _split(text):
            key, equals, raw = part.partition("=")
            if not equals or not key.strip().isidentifier():
                self.fail(f"{part!r} is not key=value", param, ctx)
            pairs[key.strip()] = _json_or_text(raw.strip())
        return pairs


def _split(text: str) -> list[str]:
    """Split at commas that stand outside brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


def _json_or_text(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(raw, raw)


def _set_quiet(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta["computekit.quiet"] = True


def _set_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta["computekit.debug"] = True


model = click.argument("model", type=InputPath("model"))
models = click.argument("models", type=InputPath("model"), nargs=-1, required=True)
records = click.argument("records", type=InputPath("record"), nargs=-1, required=True)

quiet: Decorator = click.option(
    "--quiet", "-q", is_flag=True, expose_value=False, is_eager=True, callback=_set_quiet,
    help="No messages and no progress bars; results still go to standard output.",
)  # fmt: skip
debug: Decorator = click.option(
    "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_set_debug,
    help="Show the traceback of an error.",
)  # fmt: skip
as_json: Decorator = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
output: Decorator = click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="Where to write the result.  [default: named after the input]",
)
seed: Decorator = click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**63 - 1),
    default=0,
    show_default=True,
    help="Seed of all random choices.",
)
device: Decorator = click.option(
    "--device",
    type=DeviceName(),
    default="auto",
    show_default=True,
    metavar="NAME",
    help="auto, cpu, cuda, cuda:N or mps.",
)
threads: Decorator = click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="CPU threads; the same number gives the same bytes.  [default: all cores]",
)
label: Decorator = click.option("--label", help="Name of the result in tables.  [default: from the file name]")
input_shape: Decorator = click.option(
    "--input-shape", type=InputShapes(),
    help="Shape of one input sample, without the batch: 3,224,224 or 3x224x224. Several inputs, and types: "
    "128:int64+128. A plain number: 512+value=16000.",
)  # fmt: skip
trust_pickle: Decorator = click.option(
    "--trust-pickle", is_flag=True, help="Allow a pickle to run the code it names. Only for files that you trust."
)


def batch_size(default: int = 64) -> Decorator:
    """``--batch-size N``."""
    return click.option(
        "--batch-size", type=click.IntRange(min=1), default=default, show_default=True, help="Samples per batch."
    )


def data(required: bool = False, help: str = "") -> Decorator:
    """``--data NAME|FILE|module:callable``."""
    return click.option(
        "--data", type=HostNames("datasets", "data"), required=required,
        help=help or "Data set: a name (computekit plugins lists them), a .npz or .txt file, or module:callable.",
    )  # fmt: skip


window = click.option(
    "--window", type=WindowSize(), metavar="LENGTH[/STRIDE]",
    help="Tokens per sample of a text; with a smaller stride, windows overlap and only new tokens are scored.  "
    "[default: 256 tokens of the model's tokenizer, or 128 bytes]",
)  # fmt: skip


def arch(name: str = "--arch", default: str | None = None, required: bool = False) -> Decorator:
    """``--arch NAME|module:callable`` and ``--arch-args``; for a student, ``--student`` and ``--student-args``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option(
            f"{name}-args", type=Arguments(), default=None,
            help="Arguments of the architecture: key=value,key=value or a JSON object.",
        )(function)  # fmt: skip
        return click.option(
            name, type=HostNames("architectures", "arch"), default=default, required=required,
            show_default=default is not None,
            help="Architecture: a name (computekit plugins lists them) or package.module:callable.",
        )(function)  # fmt: skip

    return decorate


_OTHERS = "Options"


class Sectioned(click.Command):
    """A command with many options: its help shows those of each topic (``section`` of `gathered`) under a heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if row is not None:
                sections.setdefault(getattr(parameter, "section", "") or _OTHERS, []).append(row)
        for title, rows in sorted(sections.items(), key=lambda section: section[0] == _OTHERS):
            with formatter.section(title):
                formatter.write_dl(rows)


def gathered(name: str, make: Callable[..., Any], *added: Decorator, section: str = "") -> Decorator:
    """Options of one topic, whose values reach the command's function as one argument.

    ``name`` is that argument, and ``make`` is called with the values by name: the class of a frozen dataclass, or a
    function that may raise click.UsageError where they do not go together. ``section`` is their heading in the help of
    a `Sectioned` command. ::

        sampling = options.gathered("sampling", Sampling, options.data(), options.batch_size())
    """

    def collect() -> None: ...

    for decorator in reversed(added):
        decorator(collect)
    parameters: list[click.Parameter] = vars(collect)["__click_params__"]
    keys = [parameter.name for parameter in parameters if parameter.expose_value]
    for parameter in parameters:
        vars(parameter)["section"] = section

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, **kwargs: Any) -> Any:
            values = {key: kwargs.pop(key) for key in keys}
            return function(*args, **{name: make(**values)}, **kwargs)

        vars(command)["__click_params__"] = [*getattr(function, "__click_params__", ()), *parameters]
        return command

    return decorate


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every command has: --quiet and --debug."""
    return quiet(debug(function))


def step(function: Callable[..., int | None]) -> Callable[..., Any]:
    """Give a function the options of a step and, as its first argument, the `StepRun` that keeps its record.

    What the function returns is the exit status: a step that keeps a partial result says so with a number above 0.
    """

    @common
    @as_json
    @label
    @threads
    @device
    @seed
    @output
    @functools.wraps(function)
    @click.pass_context
    def command(ctx: click.Context, *args: Any, **kwargs: Any) -> None:
        from .steps import StepRun

        own = {key: kwargs.pop(key) for key in ("output", "seed", "device", "threads", "label", "as_json")}
        with StepRun(ctx, **own) as run:
            status = function(run, *args, **kwargs)
        if status:
            ctx.exit(status)

    return command
