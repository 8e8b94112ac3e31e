"""The contract kit: what every plugin promises, as tests that a plugin author gets by naming the plugin.

    # tests/test_contract.py
    from computekit.testing import PluginContract


    class TestTernary(PluginContract):
        plugin = "ternary"

Run by pytest (``pip install 'computekit[testing]'``) this checks, for a host that holds only this plugin and those it
``needs``: it loads without complaint, imports nothing heavy and prints nothing; each command is documented; each
architecture, data set, format, catalog row and column is usable; and each step leaves a valid record that names the
plugin and its files, gives the same bytes for the same seed, keeps the old output when it fails, obeys ``--output``,
``--seed``, ``--quiet`` and ``--json``, and answers bad input with one line and exit code 1.

Fixtures ``run_computekit`` and ``small_model`` are there with ``pytest_plugins = ["computekit.testing"]``. Nothing is
registered as a ``pytest11`` entry point, so that pytest runs which do not ask for the kit pay nothing for it.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from unittest import mock

import click
import pytest

from . import files, host, loading, records
from .host import Host
from .loading import Policy
from .testing_tools import Outcome, make_model, make_record, run_command
from .verbs import Command, LazyCommand, Step, loaded

if TYPE_CHECKING:
    from .contracts import Hardware, Price

__all__ = ["Outcome", "PluginContract", "make_model", "run_command", "run_computekit", "small_model"]

START_BUDGET_MS = 50
"""CPU time that a plugin may add to every start, the best of three; a light one adds 1 to 3 ms."""


@pytest.fixture
def run_computekit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """``run_computekit("ternary", "model.pt")`` runs the command in a fresh folder, with every installed plugin."""
    monkeypatch.chdir(tmp_path)
    return run_command


@pytest.fixture
def small_model(tmp_path: Path) -> Path:
    """``model.pt`` in a fresh folder: a small MLP for the digits data."""
    return make_model(tmp_path / "model.pt")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of what the plugin does not have; pytest would call each of them skipped."""
    empty = [item for item in items if _has_nothing_to_test(item)]
    config.hook.pytest_deselected(items=empty)
    items[:] = [item for item in items if item not in empty]


def _has_nothing_to_test(item: pytest.Item) -> bool:
    skips = [mark.kwargs.get("reason", "") for mark in item.iter_markers("skip")]
    kind = getattr(item, "cls", None)
    return kind is not None and issubclass(kind, PluginContract) and any("empty parameter set" in s for s in skips)


class PluginContract:
    """Tests of one plugin; subclass it under a name that starts with Test.

    ``plugin`` is the entry point's name. ``needs`` names the plugins that it extends: a quantization scheme needs
    "quantize". ``arguments`` says how each step is called on small inputs.
    """

    plugin: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()

    def arguments(self, step: Step) -> list[str]:
        """The words after ``computekit STEP`` that make a quick run; files are made in the current folder.

        The default makes what ``step.takes`` says: a small model, two of them, records of two models, or nothing.
        """
        if step.takes == "nothing":
            return []
        models = [make_model(Path(f"{name}.pt"), seed) for seed, name in enumerate(("model", "other"))]
        if step.takes == "records":
            return [str(make_record(model)) for model in models]
        return [str(model) for model in models[: 1 if step.takes == "model" else 2]]

    # -- the host --------------------------------------------------------------------------------------------------

    @classmethod
    def host(cls) -> Host:
        """A fresh host with this plugin and those it needs."""
        names = [loading.normalized(name) for name in (cls.plugin, *cls.needs)]
        return Host.discover(Policy(allowed=tuple((name, "") for name in names)))

    @pytest.fixture(autouse=True)
    def _alone(self) -> Iterator[None]:
        with host.using(self.host()):
            yield

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test for each command, step, architecture, ... of the plugin."""
        registry = self.host()
        offers: dict[str, Iterable[Any]] = {
            "command": registry.commands.values(),
            "step": registry.steps.values(),
            "architecture": registry.architectures.values(),
            "dataset": registry.datasets.values(),
            "model_format": registry.model_formats,
        }
        for fixture in offers.keys() & set(metafunc.fixturenames):
            own = [item for item in offers[fixture] if self._is_own(registry, item)]
            metafunc.parametrize(fixture, own, ids=[item.name for item in own], scope="class")

    @classmethod
    def _is_own(cls, registry: Host, item: object) -> bool:
        owner = registry.owner(item)
        return owner is not None and owner.name == cls.plugin

    # -- the plugin as a whole -------------------------------------------------------------------------------------

    def test_it_loads_without_complaint(self) -> None:
        registry = host.current()
        registry.call_hooks()
        assert registry.failures == [], "the host refused something"
        assert self.plugin in {loaded.name for loaded in registry.plugins}, "is it installed? pip install -e ."
        assert [text for _, text in registry.effects] == [], (
            "leave the process as it is; commands may do what they like"
        )
        assert [text for _, text in registry.deprecations] == [], "a deprecated hook or argument is used"

    def test_its_start_is_light_and_silent(self) -> None:
        """Importing the plugin and asking for its commands: what every start of computekit pays for."""
        allowed = ",".join((self.plugin, *self.needs))
        code = (
            "import json, sys, time\nfrom computekit import host, loading\n"
            "def start(allowed):\n"
            "    before = time.process_time()\n"
            "    registry = host.Host.discover(loading.Policy(loading.parse_allowed(allowed)))\n"
            "    registry.commands\n"
            "    return registry, time.process_time() - before\n"
            "_, without = start('')\nbefore = set(sys.modules)\n"
            f"registry, took = start({allowed!r})\ntook -= without\n"
            "printed = [loaded.printed for loaded in registry.plugins if loaded.printed]\n"
            "heavy = [name for name in loading.HEAVY if name in sys.modules and name not in before]\n"
            "print(json.dumps([took, heavy, printed]))"
        )
        seconds = []
        for _ in range(3):
            result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            took, heavy, printed = json.loads(result.stdout)
            assert heavy == [], "move these imports into the functions that need them; StepRun brings pydantic"
            assert printed == [], "a plugin must not print when it is imported"
            assert result.stderr == "", "a plugin must not print when it is imported"
            seconds.append(took)
        assert 1e3 * min(seconds) < START_BUDGET_MS, "milliseconds; do less at import"

    def test_its_columns_and_catalog_rows_have_what_readers_need(self) -> None:
        registry = host.current()
        for column in [c for c in registry.columns if self._is_own(registry, c)]:
            assert column.title, f"column {column.key!r} has no title"
            assert column.scale > 0, f"column {column.key!r}: scale divides the value"
        rows: list[Hardware | Price] = [*registry.hardware, *registry.prices]
        for row in [r for r in rows if self._is_own(registry, r)]:
            assert row.source, f"{row} names no source"

    def test_what_it_adds_to_other_plugins_is_described(self) -> None:
        for hook, items in host.current().extensions.items():
            for item in [item for item in items.values() if self._is_own(host.current(), item)]:
                assert getattr(item, "summary", True), f"{item} of {hook} has no summary"

    # -- what it contributes ---------------------------------------------------------------------------------------

    def test_command_is_documented(self, command: Command) -> None:
        tree = dict(_tree(command.name, command.command))
        if isinstance(command.command, LazyCommand):
            assert tree[command.name].name == command.name, "a LazyCommand has the name of the command it stands for"
            assert command.command.short_help, "a LazyCommand needs a summary"
        for path, each in tree.items():
            if isinstance(each, click.Group):
                continue
            assert each.help, f"computekit {path} has no description"
            assert "Example:" in each.help, f"computekit {path} --help has no Example"
            for option in [p for p in each.params if isinstance(p, click.Option)]:
                assert option.help, f"computekit {path} {option.opts[0]} has no help"
            names = {name for p in each.params for name in p.opts}
            assert {"--quiet", "--debug"} <= names, f"computekit {path} lacks @options.common (or @options.step)"

    def test_architecture_builds_the_same_twice_and_runs(self, architecture: Any) -> None:
        import torch

        def build() -> torch.nn.Module:
            torch.manual_seed(0)
            module: torch.nn.Module = architecture.build()
            return module.eval()

        first, second = build().state_dict(), build().state_dict()
        assert architecture.summary
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first), "the seed does not fix the parameters"
        if architecture.example is not None:
            with torch.no_grad():
                output = build()(*architecture.example(2))
            assert len(output) == 2, "the first dimension of the output is the batch"

    def test_dataset_loads_the_same_twice(self, dataset: Any) -> None:
        data, again = dataset.load(), dataset.load()
        assert dataset.summary
        assert data.source, "where do the data come from?"
        assert data.sha256() == again.sha256()
        for split in (data.train, data.validation, data.test):
            assert 0 < len(split.inputs) == len(split.targets)
            assert int(split.targets.max()) < data.classes

    def test_format_looks_at_content_only(self, model_format: Any, tmp_path: Path) -> None:
        assert model_format.summary
        for i, content in enumerate((b"", b"\0", b"text", b"PK\x03\x04", os.urandom(512))):
            path = tmp_path / f"junk{i}"
            path.write_bytes(content)
            assert model_format.sniff(path) is False
        assert model_format.sniff(tmp_path / "missing") is False
        assert model_format.sniff(tmp_path) is False

    # -- its steps -------------------------------------------------------------------------------------------------

    @pytest.fixture
    def finished(self, step: Step, tmp_path_factory: pytest.TempPathFactory) -> Finished:
        """One good run of the step, shared by the tests that look at what it left."""
        key = (type(self), step.name)
        if key not in _FINISHED:
            _FINISHED[key] = self._finish(step, tmp_path_factory.mktemp(step.name))
        return _FINISHED[key]

    def _finish(self, step: Step, folder: Path, trouble: AbstractContextManager[object] | None = None) -> Finished:
        """Run the step in ``folder``; ``trouble`` is in force from when its inputs are there."""
        before = Path.cwd()
        os.chdir(folder)
        try:
            arguments = self.arguments(step)
            inputs = {p.name: files.sha256(p) for p in sorted(folder.iterdir())}
            output = Path(f"result.{'pt' if step.gives == 'model' else 'json'}")
            words = [*step.argv, *arguments, "--seed", "7", "--threads", "1", "--device", "cpu", "-o", str(output)]
            with trouble or nullcontext():
                outcome = run_command(*words)
            left = {p.name for p in folder.iterdir()} - inputs.keys()
            after = {name: files.sha256(folder / name) for name in inputs}
            return Finished(folder, words, outcome, output, left, after == inputs)
        finally:
            os.chdir(before)

    def test_step_writes_its_output_and_nothing_else(self, step: Step, finished: Finished) -> None:
        assert finished.outcome.exit_code == 0, finished.outcome.stderr
        beside = {records.beside(finished.output).name} if step.gives == "model" else set()
        assert finished.left == {finished.output.name} | beside, "files left in the folder"
        assert finished.inputs_unchanged
        assert finished.outcome.stdout.strip(), "a result belongs on standard output"

    def test_step_leaves_a_valid_record(self, step: Step, finished: Finished) -> None:
        from .models import open_model

        record = finished.record(step)
        assert record.step == step.name
        assert record.seed == 7
        assert record.rows, "run.put() adds quantities"
        [owner] = [plugin for plugin in record.plugins if plugin.name == self.plugin]
        assert owner.sha256
        if step.takes != "nothing":
            assert record.inputs, "run.input(path) registers what goes in"
        if step.gives == "model":
            assert open_model(finished.folder / finished.output).tensors, "the output holds no weights"
            assert record.output == records.FileRef(
                path=str(finished.output),
                sha256=files.sha256(finished.folder / finished.output),
                bytes=files.size_bytes(finished.folder / finished.output),
            )

    def test_step_repeats_itself_quietly_as_json(self, step: Step, finished: Finished, tmp_path: Path) -> None:
        """In a process of its own: the same bytes, nothing on standard error, one JSON document on standard output."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            self.arguments(step)
        allowed = ",".join((self.plugin, *self.needs))
        again = subprocess.run(
            [sys.executable, "-m", "computekit", *finished.words, "--quiet", "--json"],
            capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "COMPUTEKIT_ALLOW_PLUGINS": allowed},
        )  # fmt: skip
        assert again.returncode == 0, again.stderr
        assert again.stderr == "", "--quiet keeps standard error empty"
        assert _is_json(again.stdout), (
            f"--json prints the record and nothing else, use run.show(): {again.stdout[:200]}"
        )
        printed = records.Record.model_validate_json(again.stdout)
        if step.exclusive:  # it measures, and what follows from measurements differs from run to run
            assert [row.label for row in printed.rows] == [row.label for row in finished.record(step).rows]
        else:
            assert printed.reproducible() == finished.record(step).reproducible()
        if step.gives == "model":
            ours, theirs = finished.folder / finished.output, tmp_path / finished.output
            assert files.sha256(ours) == files.sha256(theirs), "same seed, other bytes"

    def test_step_keeps_the_old_output_when_it_fails(self, step: Step, tmp_path: Path) -> None:
        full = mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "No space left on device"))
        (tmp_path / f"result.{'pt' if step.gives == 'model' else 'json'}").write_bytes(b"old")
        failed = self._finish(step, tmp_path, trouble=full)
        _one_line(failed.outcome, "disk is full")
        assert (tmp_path / failed.output).read_bytes() == b"old", "write with run.writing()"
        assert failed.left == set(), "a half-written file was left behind"

    def test_step_refuses_an_output_that_cannot_be(
        self, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        _one_line(run_command(*step.argv, *self.arguments(step), "-o", "no/such/folder.pt"), "does not exist")

    def test_step_refuses_bad_input(self, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        arguments = self.arguments(step)
        inputs = [word for word in arguments if Path(word).is_file()]
        if step.takes == "nothing" or not inputs:
            pytest.skip("it takes no files")
        whole = Path(inputs[0]).read_bytes()
        bad = {"empty": b"", "text": b"some text\n", "binary": bytes(range(256)), "cut": whole[: len(whole) // 2]}
        for name, content in bad.items():
            Path(f"{name}.pt").write_bytes(content)
        Path("folder").mkdir()
        for name in [*(f"{name}.pt" for name in bad), "folder", "missing.pt"]:
            words = [name if word == inputs[0] else word for word in arguments]
            _one_line(run_command(*step.argv, *words, "-o", "result"), name)
            assert not Path("result").exists()

    def test_step_is_the_command_that_its_words_lead_to(self, step: Step) -> None:
        root = host.current().commands[step.argv[0]]
        assert dict(_tree(root.name, root.command)).get(" ".join(step.argv)) is loaded(step.command)

    def test_step_refuses_unknown_options(self, step: Step) -> None:
        outcome = run_command(*step.argv, "--no-such-option")
        assert (outcome.exit_code, outcome.stdout) == (2, "")
        assert "--no-such-option" in outcome.stderr


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class Finished(NamedTuple):
    """A step that ran: the command's words, what it said and what it left in ``folder``."""

    folder: Path
    words: list[str]
    outcome: Outcome
    output: Path
    left: set[str]
    inputs_unchanged: bool

    def record(self, step: Step) -> records.Record:
        """The record that the run left."""
        assert self.outcome.exit_code == 0, self.outcome.stderr
        return records.load(self.folder / (records.beside(self.output) if step.gives == "model" else self.output))


_FINISHED: dict[tuple[type[PluginContract], str], Finished] = {}


def _one_line(outcome: Outcome, mention: str) -> None:
    """An error for people: exit code 1, one line on standard error that names the culprit, no traceback."""
    assert outcome.exit_code == 1, f"exit code 1 is for input that cannot be used: {outcome}"
    lines = [line for line in outcome.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, outcome.stderr
    assert "internal error" not in lines[0], lines[0]
    assert mention in lines[0], lines[0]
    assert "Traceback" not in outcome.stderr


def _tree(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    command = loaded(command)
    yield path, command
    children = command.commands if isinstance(command, click.Group) else {}
    for name, child in children.items():
        yield from _tree(f"{path} {name}", child)
