"""From a config to jobs: variants become a tree whose common beginnings run once, measurements become records.

`build` is pure: the same config and the same installed steps give the same plan. A model that a variant ends in is
``RESULTS/models/VARIANT.pt``; one on the way to it is named after the first variant that passes and its position,
``RESULTS/models/VARIANT.1.pt``. Records are ``RESULTS/records/MEASURE/VARIANT.json`` for a step that takes one model,
else ``RESULTS/records/MEASURE.json``.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import config as configuration
from .config import Config, Use
from .registry import ConfigError, Registry, Step, check_complete, check_options, command_line, nearest, unknown

FORMATS = {"md": "github", "csv": "csv", "json": "json", "html": "html", "tex": "latex", "txt": "plain"}
"""The ``--format`` of ``computekit table`` for each file that the config can ask for."""


@dataclass(frozen=True)
class Job:
    """One run of one step, as the rules need it; every string is ready for the shell.

    ``inputs`` are the positional arguments, ``referenced`` are files that options name, ``version`` is a reason to run
    again: computekit's own version and that of the step's plugin.
    """

    words: str
    inputs: tuple[str, ...]
    referenced: tuple[str, ...]
    options: str
    version: str
    threads: int
    gpus: int
    exclusive: bool


@dataclass(frozen=True)
class Plan:
    """All jobs of a pipeline: models and records by file name below ``models/`` and ``records/``.

    ``folders`` are the models that are folders, ``variants`` the model file of each variant, ``shown`` the records
    that tables and the report are made from, in the order of their rows.
    """

    results: str
    version: str
    models: Mapping[str, Job]
    folders: frozenset[str]
    records: Mapping[str, Job]
    variants: Mapping[str, str]
    shown: tuple[str, ...]
    table_options: str
    formats: tuple[str, ...]

    @property
    def targets(self) -> list[str]:
        """What a user wants to see in the end."""
        return [*(f"{self.results}/table.{suffix}" for suffix in self.formats), f"{self.results}/report.html"]


@dataclass
class Node:
    """A model in the tree of variants: what makes it, and from what."""

    use: Use
    step: Step
    parent: Node | None
    start: str | None
    first: tuple[str, int]
    variant: str = ""
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """File name below ``models/``."""
        return (self.variant or f"{self.first[0]}.{self.first[1]}") + self.suffix

    @property
    def suffix(self) -> str:
        """``.pt``, or that of the model before where the step keeps its kind; a folder has none."""
        if self.step.keeps_kind and self.parent is not None:
            return self.parent.suffix
        if self.step.keeps_kind and self.start is not None:
            return "" if Path(self.start).is_dir() else Path(self.start).suffix or ".pt"
        return ".pt"


def build(raw: Mapping[str, Any], registry: Registry) -> Plan:
    """The plan for a config as YAML gave it; raises ConfigError with one line for the first thing that is wrong."""
    return _Planner(configuration.read(raw), registry).plan()


class _Planner:
    def __init__(self, config: Config, registry: Registry) -> None:
        self.config, self.registry = config, registry
        self.roots: dict[str, dict[str, Node]] = {}
        self.nodes: list[Node] = []
        self.ends: dict[str, Node | str] = {}
        self.models = f"{config.results}/models"
        self.records = f"{config.results}/records"

    def plan(self) -> Plan:
        for use in self.config.steps.values():
            check_options(self.registry.step(use.step, f"steps.{use.name}"), use.options, f"steps.{use.name}")
        for variant in self.config.variants.values():
            self.ends[variant.name] = self._grow(variant)
        for node in self.nodes:
            self._check_acyclic(node, ())
        records = self._measurements()
        return Plan(
            results=self.config.results,
            version=self.registry.version,
            models={node.file: self._model_job(node) for node in self.nodes},
            folders=frozenset(node.file for node in self.nodes if not node.suffix),
            records=records,
            variants={name: self._path(name) for name in self.ends},
            shown=tuple(self._shown(records)),
            table_options=self._table_options(),
            formats=self.config.table.formats,
        )

    # -- models --------------------------------------------------------------------------------------------------

    def _grow(self, variant: configuration.Variant) -> Node | str:
        """Walk down the tree along ``variant``, adding what is not there yet; where it ends, or the file itself."""
        if not variant.uses:
            return str(variant.start)
        level = self.roots.setdefault(variant.start or "", {})
        node: Node | None = None
        for position, use in enumerate(variant.uses, start=1):
            where = f"variants.{variant.name}: {use.name}"
            step = self.registry.step(use.step, where)
            first = node is None and variant.start is None
            _check_place(step, use, first, where)
            full = self._complete(use, step, where)
            key = json.dumps([full.step, full.options, full.of], sort_keys=True)
            if key not in level:
                level[key] = Node(full, step, node, variant.start, (variant.name, position))
                self.nodes.append(level[key])
            node = level[key]
            level = node.children
        assert node is not None
        if node.variant:
            raise ConfigError(f"variants.{variant.name}: is the same as variant {node.variant!r}; remove one")
        node.variant = variant.name
        return node

    def _complete(self, use: Use, step: Step, where: str) -> Use:
        """``use`` with the options that all steps share, where the step has them; everything checked."""
        common = {key: value for key, value in self.config.common.items() if key in step.options}
        full = Use(use.name, use.step, {**common, **use.options}, use.of)
        check_options(step, full.options, where)
        check_complete(step, full.options, where)
        return full

    def _model_job(self, node: Node) -> Job:
        if node.parent is not None:
            inputs: Iterable[str] = [f"{self.models}/{node.parent.file}"]
        elif node.start is not None:
            inputs = [node.start]
        else:
            inputs = self._variants_of(node.use, f"steps.{node.use.name}") if node.step.takes == "models" else ()
        return self._job(node.use, node.step, inputs)

    def _check_acyclic(self, node: Node, above: tuple[Node, ...]) -> None:
        if any(node is other for other in above):
            names = " -> ".join(n.variant or n.use.name for n in (*above, node))
            raise ConfigError(f"variants need each other in a circle: {names}")
        needed = [self.ends[name] for name in self._variants_in(node.use, node.step)]
        if node.step.takes == "models":
            needed += [self.ends[name] for name in node.use.of or ()]
        for other in (node.parent, *needed):
            if isinstance(other, Node):
                self._check_acyclic(other, (*above, node))

    def _variants_in(self, use: Use, step: Step) -> list[str]:
        """Variants that options name."""
        values = [use.options.get(key) for key, option in step.options.items() if option.holds == "model"]
        flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
        return [str(item) for item in flat if item in self.config.variants]

    # -- measurements --------------------------------------------------------------------------------------------

    def _measurements(self) -> dict[str, Job]:
        jobs: dict[str, Job] = {}
        made: dict[str, list[str]] = {}
        for name, use in self.config.measure.items():
            where = f"measure.{name}"
            step = self.registry.step(use.step, where)
            if step.gives != "record":
                raise ConfigError(f"{where}: step {step.name!r} gives a {step.gives}; list it in a variant")
            full = self._complete(use, step, where)
            if step.takes == "model":
                over = {v: self._job(full, step, [self._path(v)], label=v) for v in self._chosen(full, where)}
                added = {f"{name}/{variant}.json": job for variant, job in over.items()}
            elif step.takes == "models":
                added = {f"{name}.json": self._job(full, step, self._variants_of(full, where))}
            elif step.takes == "records":
                added = {f"{name}.json": self._job(full, step, self._records_of(full, made, where))}
            else:
                added = {f"{name}.json": self._job(full, step, [])}
            made[name] = [f"{self.records}/{record}" for record in added]
            jobs |= added
        return jobs

    def _shown(self, records: Iterable[str]) -> list[str]:
        """Records in the order of the table's rows: variant by variant, then those about all of them."""
        shown: list[str] = []
        for name, end in self.ends.items():
            shown += [f"{self.models}/{end.file}.record.json"] if isinstance(end, Node) else []
            shown += [f"{self.records}/{record}" for record in records if record.endswith(f"/{name}.json")]
        return shown + [f"{self.records}/{record}" for record in records if "/" not in record]

    def _chosen(self, use: Use, where: str) -> list[str]:
        """The variants that ``of`` names; by default all."""
        for name in use.of or ():
            if name not in self.ends:
                raise ConfigError(f"{where}.of: {unknown('variant', name, self.ends)}")
        return list(use.of or self.ends)

    def _variants_of(self, use: Use, where: str) -> list[str]:
        return [self._path(name) for name in self._chosen(use, where)]

    def _records_of(self, use: Use, made: Mapping[str, list[str]], where: str) -> list[str]:
        """The records of the measurements (all above by default) and variants that ``of`` names."""
        found: list[str] = []
        for name in use.of or made:
            end = self.ends.get(name)
            if name in made:
                found += made[name]
            elif isinstance(end, Node):
                found.append(f"{self.models}/{end.file}.record.json")
            else:
                later = " (a measurement can only use those above it)" if name in self.config.measure else ""
                raise ConfigError(f"{where}.of: {unknown('measurement', name, [*made, *self.ends])}{later}")
        if not found:
            raise ConfigError(f"{where}: step {use.step!r} takes records; list a measurement above it")
        return found

    # -- jobs ----------------------------------------------------------------------------------------------------

    def _path(self, variant: str) -> str:
        end = self.ends[variant]
        return f"{self.models}/{end.file}" if isinstance(end, Node) else end

    def _job(self, use: Use, step: Step, inputs: Iterable[str], label: str = "") -> Job:
        options, referenced = dict(use.options), []
        for key, option in step.options.items():
            if option.holds is not None and options.get(key) is not None:
                value = options[key]
                named = [self._file(str(v), use, key) for v in (value if isinstance(value, list) else [value])]
                options[key] = named if isinstance(value, list) else named[0]
                referenced += named
        device = str(options.get("device", ""))
        return Job(
            words=shlex.join(step.argv),
            inputs=tuple(inputs),
            referenced=tuple(referenced),
            options=shlex.join([*command_line(step, options), *(["--label", label] if label else [])]),
            version=f"{self.registry.version}, {step.version}",
            threads=int(options.get("threads") or 1),
            gpus=1 if device.startswith("cuda") else 0,
            exclusive=step.exclusive,
        )

    def _file(self, value: str, use: Use, key: str) -> str:
        """The file that an option means: that of a variant, or the path itself."""
        if value in self.ends:
            return self._path(value)
        near = nearest(value, self.ends)
        if near and not Path(value).exists():
            raise ConfigError(f"{use.name}.{key}: {value!r} is no variant and no file; did you mean {near}?")
        return value

    def _table_options(self) -> str:
        table = self.config.table
        words = ["--columns", ",".join(table.columns)] if table.columns else []
        return shlex.join(words + (["--sort", table.sort] if table.sort else []))


def pattern(names: Iterable[str]) -> str:
    """A regular expression that matches exactly ``names``; of none, one that matches nothing."""
    return "|".join(map(re.escape, names)) or "(?!)"


def _check_place(step: Step, use: Use, first: bool, where: str) -> None:
    """Raise ConfigError if ``step`` cannot stand where the variant has it."""
    if step.gives != "model":
        raise ConfigError(f"{where}: step {step.name!r} gives a {step.gives}; list it under 'measure'")
    if first and step.takes == "model":
        raise ConfigError(
            f"{where}: step {step.name!r} takes a model; begin with a step that makes one or {{model: PATH}}"
        )
    if first and step.takes == "models" and use.of is None:
        raise ConfigError(f"{where}: step {step.name!r} takes several models; name variants with 'of'")
    if step.takes == "records" or (not first and step.takes != "model"):
        raise ConfigError(f"{where}: step {step.name!r} takes {step.takes}, so it cannot come after a model")
