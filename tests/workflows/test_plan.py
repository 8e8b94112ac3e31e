"""The plan: common beginnings run once, every input is known, and bad configs are refused before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from computekit_workflows import plan
from computekit_workflows.registry import ConfigError, Option, Registry, Step
from hypothesis import given
from hypothesis import strategies as st


def step(name: str, takes: str, gives: str, *options: Option, exclusive: bool = False, **more: Any) -> Step:
    shared = (
        Option("seed", "--seed", "integer"),
        Option("device", "--device"),
        Option("threads", "--threads", "integer"),
    )
    argv = more.get("argv", (name,))
    return Step(
        name, argv, takes, gives, exclusive, name == "shrink", "fake 1.0", {o.key: o for o in (*options, *shared)}
    )


STEPS = Registry(
    "computekit 0.1.0",
    {
        s.name: s
        for s in (
            step("grow", "nothing", "model", Option("data", "--data"), Option("width", "--width", "integer")),
            step(
                "trim",
                "model",
                "model",
                Option("by", "--by", "number", required=True),
                Option("teacher", "--teacher", holds="model"),
            ),
            step("shrink", "model", "model"),
            step("blend", "models", "model"),
            step("weigh", "model", "record", argv=("scale", "weigh")),
            step("race", "models", "record", exclusive=True),
            step("bill", "records", "record"),
        )
    },
    {},
)

CONFIG: dict[str, Any] = {
    "data": "tiny",
    "steps": {"grow": None, "trim": {"by": 1}, "hard": {"step": "trim", "by": 2}},
    "variants": {"baseline": ["grow"], "trimmed": ["grow", "trim"], "both": ["grow", "trim", "hard"]},
    "measure": {"weigh": None, "race": None, "bill": {"of": "race"}},
}


def build(**changes: Any) -> plan.Plan:
    return plan.build({**CONFIG, **changes}, STEPS)


def test_shared_beginnings_run_once_and_are_named_after_the_variant_that_ends_there() -> None:
    made = build()
    assert list(made.models) == ["baseline.pt", "trimmed.pt", "both.pt"]
    assert made.models["trimmed.pt"].inputs == ("results/models/baseline.pt",)
    assert made.models["both.pt"].inputs == ("results/models/trimmed.pt",)


def test_step_on_the_way_is_named_after_the_first_variant_and_its_position() -> None:
    made = build(variants={"x": ["grow", "trim", "hard"], "y": ["grow", "trim", {"hard": {"by": 5}}]})
    assert list(made.models) == ["x.1.pt", "x.2.pt", "x.pt", "y.pt"]
    assert made.models["y.pt"].inputs == made.models["x.pt"].inputs == ("results/models/x.2.pt",)


def test_different_options_do_not_share() -> None:
    made = build(variants={"a": ["grow"], "b": [{"grow": {"width": 2}}], "c": [{"grow": {"width": 2}}, "trim"]})
    assert list(made.models) == ["a.pt", "b.pt", "c.pt"]
    assert made.models["c.pt"].inputs == ("results/models/b.pt",)


def test_common_options_go_to_steps_that_have_them_and_do_not_set_them() -> None:
    made = build(seed=7, threads=2, variants={"baseline": ["grow", {"trim": {"seed": 1, "threads": 4}}]}, measure={})
    assert made.models["baseline.1.pt"].options == "--data tiny --seed 7 --device auto --threads 2"
    assert made.models["baseline.pt"].options == "--by 1 --seed 1 --device auto --threads 4"
    assert [job.threads for job in made.models.values()] == [2, 4]


def test_measurements_run_over_each_variant_or_over_all() -> None:
    made = build()
    assert list(made.records) == [
        "weigh/baseline.json", "weigh/trimmed.json", "weigh/both.json", "race.json", "bill.json",
    ]  # fmt: skip
    everyone = tuple(f"results/models/{name}.pt" for name in CONFIG["variants"])
    assert made.records["weigh/both.json"].inputs == (everyone[-1],)
    assert made.records["weigh/both.json"].words == "scale weigh"
    assert made.records["weigh/both.json"].options.endswith("--label both")
    assert made.records["race.json"].inputs == everyone
    assert made.records["race.json"].exclusive
    assert made.records["bill.json"].inputs == ("results/records/race.json",)


def test_of_chooses_what_is_measured() -> None:
    made = build(
        measure={"weigh": {"of": ["both"]}, "race": {"of": ["both", "baseline"]}, "bill": {"of": ["weigh", "both"]}}
    )
    assert list(made.records) == ["weigh/both.json", "race.json", "bill.json"]
    assert made.records["race.json"].inputs == ("results/models/both.pt", "results/models/baseline.pt")
    assert made.records["bill.json"].inputs == (
        "results/records/weigh/both.json",
        "results/models/both.pt.record.json",
    )


def test_records_are_shown_variant_by_variant() -> None:
    made = build(results="out/")
    one_by_one = [
        path
        for name in CONFIG["variants"]
        for path in (f"out/models/{name}.pt.record.json", f"out/records/weigh/{name}.json")
    ]
    assert made.shown == (*one_by_one, "out/records/race.json", "out/records/bill.json")
    assert made.targets == ["out/table.md", "out/table.csv", "out/table.json", "out/report.html"]


def test_option_that_holds_a_model_may_name_a_variant() -> None:
    made = build(variants={"student": ["grow", {"trim": {"teacher": "big"}}], "big": [{"grow": {"width": 9}}]})
    job = made.models["student.pt"]
    assert job.referenced == ("results/models/big.pt",)
    assert "--teacher results/models/big.pt" in job.options


def test_own_model_starts_a_variant_and_keeps_its_kind_where_the_step_does(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    steps = {**CONFIG["steps"], "shrink": None}
    made = build(
        steps=steps,
        variants={
            "own": [{"model": "mine.safetensors"}],
            "shrunk": [{"model": "mine.safetensors"}, "shrink"],
            "trimmed": [{"model": "mine.safetensors"}, "trim"],
            "hf": [{"model": str(folder)}, "shrink", {"shrink": {"seed": 1}}],
            "hf-trimmed": [{"model": str(folder)}, "trim", "shrink"],
        },
    )
    assert list(made.models) == [
        "shrunk.safetensors", "trimmed.pt", "hf.1", "hf", "hf-trimmed.1.pt", "hf-trimmed.pt",
    ]  # fmt: skip
    assert made.models["shrunk.safetensors"].inputs == ("mine.safetensors",)
    assert made.folders == {"hf", "hf.1"}
    assert made.records["race.json"].inputs[0] == "mine.safetensors"
    assert not any("models/own" in path for path in made.shown)


def test_first_step_may_take_several_models() -> None:
    made = build(steps={**CONFIG["steps"], "blend": {"of": ["baseline", "trimmed"]}},
                 variants={"soup": ["blend"], **CONFIG["variants"]})  # fmt: skip
    assert made.models["soup.pt"].inputs == ("results/models/baseline.pt", "results/models/trimmed.pt")


def test_cuda_asks_for_a_gpu() -> None:
    assert {job.gpus for job in build(device="cuda:1").models.values()} == {1}
    assert {job.gpus for job in build(device="auto").models.values()} == {0}


def test_versions_are_part_of_every_job() -> None:
    made = build()
    assert {job.version for job in (*made.models.values(), *made.records.values())} == {"computekit 0.1.0, fake 1.0"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": {"spare": {"step": "grwo"}, **CONFIG["steps"]}}, "steps.spare: unknown step 'grwo'; did you"),
        ({"steps": {**CONFIG["steps"], "trim": {"bye": 1}}}, "steps.trim: step 'trim' has no option 'bye'; did you"),
        ({"variants": {"a": ["grow", {"trim": {"by": None}}]}}, "variants.a: trim: step 'trim' needs by"),
        ({"variants": {"a": ["trim"]}}, "takes a model; begin with a step that makes one or {model: PATH}"),
        ({"variants": {"a": ["grow", "grow"]}}, "takes nothing, so it cannot come after a model"),
        ({"variants": {"a": ["grow"], "b": ["grow"]}}, "variants.b: is the same as variant 'a'; remove one"),
        ({"steps": {**CONFIG["steps"], "weigh": {}}, "variants": {"a": ["grow", "weigh"]}}, "list it under 'measure'"),
        ({"measure": {"trim": {"by": 1}}}, "measure.trim: step 'trim' gives a model; list it in a variant"),
        ({"measure": {"race": {"of": "bothh"}}}, "measure.race.of: unknown variant 'bothh'; did you mean both?"),
        ({"measure": {"bill": {"of": "race"}, "race": None}}, "a measurement can only use those above it"),
        ({"measure": {"bill": None}}, "takes records; list a measurement above it"),
        (
            {"variants": {"a": ["grow", {"trim": {"teacher": "b"}}], "b": ["grow", {"hard": {"teacher": "a"}}]}},
            "variants need each other in a circle: a -> b -> a",
        ),
        ({"variants": {"a": ["grow", {"trim": {"teacher": "bas"}}], "base": ["grow"]}}, "did you mean base?"),
    ],
)  # fmt: skip
def test_bad_plan_is_one_line_that_says_where(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.lists(st.text(st.characters(codec="ascii"), min_size=1), max_size=5), st.text())
def test_pattern_matches_exactly_the_names(names: list[str], other: str) -> None:
    pattern = re.compile(plan.pattern(names))
    assert all(pattern.fullmatch(name) for name in names)
    assert bool(pattern.fullmatch(other)) == (other in names)
