"""The pipeline as Snakemake runs it, with fake steps: what runs, what runs again, what a user sees when it fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .conftest import Pipeline

CONFIG = """
data: tiny
steps:
  base: {step: grow, width: 3}
  trim: {by: 1e-3}
  hard: {step: trim, by: 2, mode: exact, keep: [a b, c], deep: true, extra: {z: 1}, teacher: baseline}
variants:
  baseline: [base]
  trimmed: [base, trim]
  trimmed+hard: [base, trim, hard]
measure:
  weigh:
  race:
  bill: {of: race}
"""
VIEWS = {"table.md", "table.csv", "table.json", "report.html"}


def model(name: str) -> set[str]:
    return {f"models/{name}.pt", f"models/{name}.pt.record.json"}


def test_dry_run_plans_every_job_once(pipeline: Pipeline) -> None:
    pipeline.configure(CONFIG)
    done = pipeline.snakemake("--dry-run")
    assert done.returncode == 0, done.stderr
    stats = dict(re.findall(r"^(\w+) +(\d+)$", done.stdout, re.MULTILINE))
    assert stats == {"model_step": "3", "record_step": "5", "report": "1", "table": "3", "all": "1", "total": "13"}
    assert not (pipeline.folder / "results").exists()


def test_typo_in_config_is_one_line(pipeline: Pipeline) -> None:
    pipeline.configure(CONFIG.replace("width: 3", "widht: 3"))
    done = pipeline.snakemake()
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1]
        == "Error: config: steps.base: step 'grow' has no option 'widht'; did you mean width?"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_second_run_does_nothing_and_a_change_runs_what_depends_on_it(pipeline: Pipeline) -> None:
    pipeline.configure(CONFIG)
    made = pipeline.run()
    weighed = {f"records/weigh/{name}.json" for name in ("baseline", "trimmed", "trimmed+hard")}
    measured = {"records/race.json", "records/bill.json"}
    assert made == model("baseline") | model("trimmed") | model("trimmed+hard") | weighed | measured | VIEWS

    assert pipeline.run() == set()
    table = (pipeline.folder / "results" / "table.md").read_text(encoding="utf-8")
    assert table in pipeline.snakemake().stdout, "a user who runs it again sees the table"
    assert pipeline.run(cores=1) == set(), "the number of cores changes nothing"

    pipeline.configure(CONFIG.replace("mode: exact", "mode: fast"))
    last = model("trimmed+hard") | {"records/weigh/trimmed+hard.json"}
    assert pipeline.run() == last | measured | VIEWS

    pipeline.configure(CONFIG.replace("mode: exact", "mode: fast").replace("weigh:", "weigh: {seed: 3}"))
    assert pipeline.run() == weighed | VIEWS

    pipeline.configure(
        CONFIG.replace("mode: exact", "mode: fast").replace("weigh:", "weigh: {seed: 3}") + "table: {sort: latency_s}"
    )
    assert pipeline.run() == VIEWS - {"report.html"}


@pytest.mark.slow
def test_newer_plugin_runs_its_steps_again(pipeline: Pipeline, fake_site: Path, tmp_path: Path) -> None:
    pipeline.configure(CONFIG)
    pipeline.run()
    metadata = fake_site / "computekit_fake-1.0.dist-info" / "METADATA"
    old = metadata.read_text(encoding="utf-8")
    try:
        metadata.write_text(old.replace("Version: 1.0", "Version: 1.1"), encoding="utf-8")
        assert model("baseline") <= pipeline.run()
    finally:
        metadata.write_text(old, encoding="utf-8")


@pytest.mark.slow
def test_failure_shows_the_own_line_of_the_step_and_keeps_the_rest(pipeline: Pipeline) -> None:
    pipeline.configure(CONFIG.replace("by: 2", "by: -2"))
    done = pipeline.snakemake()
    assert done.returncode == 1
    assert "Error: cannot trim by -2.0; give a positive number" in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    models = {path.name for path in (pipeline.folder / "results" / "models").iterdir()}
    assert models == {path.removeprefix("models/") for path in model("baseline") | model("trimmed")}


@pytest.mark.slow
def test_own_folder_is_a_model_like_any_other(pipeline: Pipeline) -> None:
    (pipeline.folder / "own").mkdir()
    (pipeline.folder / "own" / "config.json").write_text("{}", encoding="utf-8")
    pipeline.configure(
        "steps: {extend: }\nvariants: {original: [{model: own}], longer: [{model: own}, extend]}\nmeasure: {weigh: }\n"
    )
    pipeline.run()
    assert (pipeline.folder / "results" / "models" / "longer" / "more.json").exists()
    rows = json.loads((pipeline.folder / "results" / "table.json").read_text(encoding="utf-8"))
    sizes = [(row["model"], row["quantities"]["file_bytes"]["value"]) for row in rows]
    assert sizes == [("original", 2), ("longer", 4)], "a row is named after its variant and joined by content"
    assert pipeline.run() == set()


@pytest.mark.slow
def test_exclusive_step_runs_alone(pipeline: Pipeline) -> None:
    pipeline.configure(CONFIG)
    assert "records/race.json" in pipeline.run(cores=4), "race fails when another measurement runs beside it"


@pytest.mark.slow
def test_another_workflow_includes_the_rules_from_the_installed_package(pipeline: Pipeline) -> None:
    pipeline.configure(CONFIG.replace("variants:", "results: out\nvariants:"))
    (pipeline.folder / "Snakefile").write_text(
        "from importlib.resources import files\n"
        'include: str(files("computekit_workflows") / "pipeline.smk")\n'
        'rule best:\n    default_target: True\n    input: "out/table.json"\n    output: "best.txt"\n'
        '    shell: "head -c1 {input} > {output}"\n',
        encoding="utf-8",
    )
    done = pipeline.snakemake("--snakefile", "Snakefile")
    assert done.returncode == 0, done.stderr
    assert (pipeline.folder / "best.txt").read_text(encoding="utf-8") == "["
    rows = json.loads((pipeline.folder / "out" / "table.json").read_text(encoding="utf-8"))
    assert [row["model"] for row in rows if row["model"]] == ["baseline", "trimmed", "trimmed+hard"]


@pytest.mark.slow
def test_runs_on_a_cluster_executor(pipeline: Pipeline) -> None:
    """One job at a time: this cluster has no nodes of its own to keep exclusive steps apart."""
    pipeline.configure(CONFIG)
    submit = pipeline.folder / "submit.sh"
    submit.write_text(
        '#!/bin/sh\nfor script; do :; done\nsetsid sh "$script" >/dev/null 2>&1 &\necho $!\n', encoding="utf-8"
    )
    submit.chmod(0o755)
    made = pipeline.run(
        "--executor", "cluster-generic", "--jobs", "1", "--cluster-generic-submit-cmd", str(submit),
        "--seconds-between-status-checks", "1",
    )  # fmt: skip
    assert made >= VIEWS


def test_a_step_of_a_plugin_that_is_not_allowed_is_refused(pipeline: Pipeline) -> None:
    pipeline.configure(CONFIG + "plugins: [computekit]\n")
    done = pipeline.snakemake("--dry-run")
    assert done.returncode != 0
    assert "unknown step 'grow'" in done.stderr or "not in the list of allowed plugins" in done.stderr
    pipeline.configure(CONFIG + "plugins: [computekit, fake==1.0]\n")
    assert pipeline.snakemake("--dry-run").returncode == 0
