"""The config: every key described, defaults filled in, one clear line for whatever is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from computekit_workflows import config
from computekit_workflows.registry import ConfigError


def rules(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any], bool]]:
    for key, rule in schema.get("properties", {}).items():
        yield f"{path}{key}", rule, key in schema.get("required", [])
        yield from rules(rule, f"{path}{key}.")


def test_every_key_of_the_schema_has_a_description_and_a_default_unless_required() -> None:
    found = list(rules(config.schema()))
    assert {"seed", "variants", "table.formats"} <= {path for path, _, _ in found}
    for path, rule, required in found:
        assert rule["description"].endswith("."), path
        assert required or "default" in rule, path


def test_defaults_are_filled_in() -> None:
    read = config.read({"steps": {"train": None}, "variants": {"baseline": ["train"]}})
    assert read.results == "results"
    assert read.common == {"seed": 0, "device": "auto", "threads": 1}
    assert read.table == config.Table(None, None, ("md", "csv", "json"))
    assert read.measure == {}


def test_use_is_named_after_its_step_unless_it_says_otherwise() -> None:
    read = config.read(
        {
            "steps": {"train": {"epochs": 3}, "int8": {"step": "quantize", "int8": True}},
            "variants": {"a": ["train", {"int8": {"int8": False, "bits": 4}}], "b": [{"model": "own.pt"}, "int8"]},
        }
    )
    train, int8 = read.variants["a"].uses
    assert (train.step, train.options) == ("train", {"epochs": 3})
    assert (int8.name, int8.step, int8.options) == ("int8", "quantize", {"int8": False, "bits": 4})
    assert read.variants["b"].start == "own.pt"
    assert read.variants["b"].uses[0].options == {"int8": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"varients": {}}, "unknown key 'varients'; did you mean variants?"),
        ({"variants": {}}, "variants: "),
        ({"variants": {"a b": ["s"]}}, "variants: 'a b' is no name"),
        ({"variants": {"a": []}}, "variants.a: "),
        ({"variants": {"a": [{"s": {}, "t": {}}]}}, "variants.a.0: "),
        ({"variants": {"a": ["ss"]}}, "variants.a: unknown step 'ss'; did you mean s?"),
        ({"variants": {"a": ["s", {"model": "x.pt"}]}}, "variants.a: 'model' can only be the first item"),
        ({"variants": {"a": [{"model": 3}]}}, "variants.a: 'model' takes the path of a model file, not 3"),
        ({"variants": {"a": [{"s": 3}]}}, "variants.a: s takes a mapping of options, not 3"),
        ({"variants": {"a": [{"s": {"step": "other"}}]}}, "variants.a: s: 'step' can only be set under 'steps'"),
        ({"seed": -1}, "seed: -1 is less than the minimum of 0"),
        ({"seed": "one"}, "seed: 'one' is not of type integer"),
        ({"threads": 0}, "threads: "),
        ({"data": 3}, "data: 3 is not of type string or null"),
        ({"steps": {"s": 3}}, "steps.s: 3 is not of type object or null"),
        ({"table": {"column": []}}, "table: unknown key 'column'; did you mean columns?"),
        ({"table": {"formats": ["pdf"]}}, "table.formats.0: 'pdf' is not one of"),
    ],
)
def test_bad_config_is_one_line_that_says_where(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.read({"steps": {"s": {}}, "variants": {"a": ["s"]}, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_variants_are_named() -> None:
    with pytest.raises(ConfigError, match="'variants' is missing"):
        config.read({"seed": 1})
