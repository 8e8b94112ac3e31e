"""The contract kit finds what it is there to find: one plugin for each promise that it breaks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[..., Path]

HEAD = """
    from __future__ import annotations

    from pathlib import Path

    import click

    import computekit
    from computekit import hookspecs, implements, options
"""
STEP = """
    @click.command()
    @options.model
    @options.step
    def {function}(run: computekit.StepRun, model: Path) -> None:
        '''Copy MODEL.

        Example:
          computekit {name} model.pt
        '''
        from computekit.models import open_model, rewrite

        {body}

    @implements(hookspecs.computekit_steps)
    def steps() -> list[computekit.Step]:
        return [computekit.Step("{name}", {function}, takes="model", gives="model")]
"""
COPY = """source = open_model(run.input(model))
        with run.writing(model.with_stem(model.stem + "-new")) as target:
            rewrite(source, target, lambda info, load: None)
        run.put("parameters", 1)
"""
WRITING = 'with run.writing(model.with_stem(model.stem + "-new")) as target:'
BODIES = {
    "good": COPY,
    "unregistered": COPY.replace("run.input(model)", "model"),
    "careless": COPY.replace(WRITING, "target = run.output('x')\n        if True:"),
    "litters": COPY + "        Path('notes.txt').write_text('x')\n",
    "random": COPY.replace("None", "[(info.name, load() + __import__('random').SystemRandom().random())]"),
    "noisy": COPY + "        click.echo('done', err=True)\n",
    "chatty": COPY + "        click.echo('done')\n",
    "crashes": COPY.replace("open_model(", "__import__('torch').load(model) and open_model("),
    "overwrites": COPY + "        model.write_bytes(b'')\n",
}  # fmt: skip
FINDS = {
    "good": set(),
    "unregistered": {"test_step_leaves_a_valid_record"},
    "careless": {"test_step_writes_its_output_and_nothing_else", "test_step_keeps_the_old_output_when_it_fails"},
    "litters": {"test_step_writes_its_output_and_nothing_else"},
    "random": {"test_step_repeats_itself_quietly_as_json"},
    "noisy": {"test_step_repeats_itself_quietly_as_json"},
    "chatty": {"test_step_repeats_itself_quietly_as_json"},
    "crashes": {"test_step_refuses_bad_input"},
    "overwrites": {"test_step_writes_its_output_and_nothing_else"},
    "prints": {"test_its_start_is_light_and_silent"},
    "heavy": {"test_its_start_is_light_and_silent"},
    "undocumented": {"test_command_is_documented"},
    "conflicts": {"test_it_loads_without_complaint"},
    "unseeded": {"test_architecture_builds_the_same_twice_and_runs"},
    "sniffs-names": {"test_format_looks_at_content_only"},
}
OTHERS = {
    "prints": "print('hello')",
    "heavy": "import numpy",
    "undocumented": HEAD + """
    @implements(hookspecs.computekit_commands)
    def commands():
        return [computekit.Command(click.Command("undocumented", params=[click.Option(["--x"])]))]
    """,
    "conflicts": HEAD + """
    @implements(hookspecs.computekit_commands)
    def commands():
        return [computekit.Command(click.Command("table"))]
    """,
    "unseeded": HEAD + """
    def build():
        import random, torch
        module = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(module.weight, random.SystemRandom().random())
        return module

    @implements(hookspecs.computekit_architectures)
    def architectures():
        return [computekit.Architecture("unseeded", "one layer", build)]
    """,
    "sniffs-names": HEAD + """
    @implements(hookspecs.computekit_model_formats)
    def formats():
        return [computekit.ModelFormat("any", "anything", lambda path: path.name != "", None)]
    """,
}  # fmt: skip


@pytest.mark.slow
def test_each_broken_promise_is_found(install: Install, site: Path, tmp_path: Path) -> None:
    suite = "from computekit.testing import PluginContract\n"
    for name in FINDS:
        function = name.replace("-", "_")
        body = STEP.format(name=name, function=function, body=BODIES[name]) if name in BODIES else ""
        install(name, HEAD + body if body else OTHERS[name])
        suite += f"\n\nclass Test_{function}(PluginContract):\n    plugin = {name!r}\n"
    (tmp_path / "test_suite.py").write_text(suite, encoding="utf-8")
    asked = [f"test_suite.py::Test_{name.replace('-', '_')}::{test}" for name in FINDS for test in sorted(FINDS[name])]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rf", "test_suite.py::Test_good", *asked],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)},
    )  # fmt: skip
    failed = re.findall(r"^FAILED (test_suite\.py::Test_\w+::\w+)", result.stdout, re.MULTILINE)
    assert sorted(set(failed)) == sorted(asked), result.stdout[-3000:]
