"""``computekit cost instances``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from computekit.cli import main


def instances(*words: str) -> Result:
    return CliRunner().invoke(main, ["cost", "instances", *words])


def test_the_cheapest_device_hour_comes_first_with_its_dense_peak() -> None:
    rows = json.loads(instances("H100", "--json").output)
    assert rows and all("H100" in row["accelerator"] for row in rows)
    prices = [row["usd_per_device_hour"] for row in rows]
    assert prices == sorted(prices)
    p5 = next(row for row in json.loads(instances("p5.48xlarge", "--json").output))
    assert p5["tflops_per_usd_per_hour"] == pytest.approx(8 * 989.4 / 55.04)


def test_what_papers_call_tflops_per_dollar_is_the_vector_rate() -> None:
    """A p4d is often listed with 156 TFLOPS: eight A100s without their matrix units. Dense bf16 is 16 times that."""
    vector = json.loads(instances("p4d.24xlarge", "--dtype", "fp32", "--json").output)[0]
    matrix = json.loads(instances("p4d.24xlarge", "--json").output)[0]
    assert vector["tflops_per_usd_per_hour"] * 21.957642 == pytest.approx(156)
    assert matrix["tflops_per_usd_per_hour"] == pytest.approx(16 * vector["tflops_per_usd_per_hour"])


def test_cpu_instances_have_no_peak() -> None:
    result = instances("c7i.large")
    assert result.exit_code == 0 and "2 vCPUs" in result.output


@pytest.mark.parametrize(
    ("words", "code", "message"), [(("H1000",), 1, "no instance"), (("--dtype", "bf17"), 2, "bf16")]
)
def test_bad_requests(words: tuple[str, ...], code: int, message: str) -> None:
    result = instances(*words)
    assert result.exit_code == code and message in result.output
