"""The formulas against published figures: what they were computed from, what the authors state, and where."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from computekit_cost import formulas


@dataclass(frozen=True)
class Published:
    """``computed`` should be ``stated`` within ``rel``."""

    what: str
    computed: float
    stated: float
    source: str
    rel: float = 0.005


A100_HOUR_G_PER_KWH = 423.5  # implied by the 7B row of the Llama 2 model card; the other sizes test it

PUBLISHED = [
    Published("BLOOM dynamic energy, kWh", formulas.energy_wh(400, 1_082_990) / 1e3, 433_196, "arXiv 2211.02001"),
    Published("BLOOM dynamic emissions, t", formulas.carbon_kg(433_196e3, 57) / 1e3, 24.7, "arXiv 2211.02001"),
    Published("BLOOM idle emissions, t", formulas.carbon_kg(256_646e3, 57) / 1e3, 14.6, "arXiv 2211.02001"),
    Published("GPT-3 V100-hours", formulas.device_hours(3.14e23, 125e12, 0.1968), 3_552_000, "Epoch, All ML Systems"),
    Published("Llama 2 70B A100-hours", formulas.device_hours(8.1e23, 312e12, 0.4192), 1_720_320, "Epoch"),
    Published("MPT-30B H100-hours", formulas.device_hours(1.89e23, 989.4e12, 0.372), 142_541, "Epoch"),
    Published("T5-11B energy, MWh", formulas.energy_wh(310, 512 * 20 * 24, 1.12) / 1e6, 85.7, "arXiv 2104.10350"),
    Published("Meena energy, MWh", formulas.energy_wh(289, 1024 * 30 * 24, 1.09) / 1e6, 232, "arXiv 2104.10350"),
    Published("Meena emissions, t", formulas.carbon_kg(232e6, 415) / 1e3, 96.4, "arXiv 2104.10350"),
    Published("LLaMA-65B energy, MWh", formulas.energy_wh(400, 1_022_362, 1.1) / 1e6, 449, "arXiv 2302.13971"),
    *(
        Published(
            f"Llama 2 {size} emissions, t",
            formulas.carbon_kg(formulas.energy_wh(watts, hours), A100_HOUR_G_PER_KWH) / 1e3,
            tonnes,
            "Llama 2 model card",
        )
        for size, hours, watts, tonnes in [
            ("7B", 184_320, 400, 31.22),
            ("13B", 368_640, 400, 62.44),
            ("34B", 1_038_336, 350, 153.9),
            ("70B", 1_720_320, 400, 291.42),
        ]
    ),
    Published(
        "Llama 3 emissions, t",
        formulas.carbon_kg(formulas.energy_wh(700, 7.7e6), 425) / 1e3,
        2290,
        "Llama 3 model card",
    ),
    Published("DeepSeek-V3 serving, USD a day", 226.75 * 8 * 24 * 2.0, 87_072, "DeepSeek open-infra day 6", 1e-9),
    Published(
        "DeepSeek-V3 serving, USD per million output tokens",
        formulas.usd_per_million(226.75 * 8 * 2.0, 168e9 / 24 / 3600),
        87_072 / 168e3,
        "DeepSeek open-infra day 6",
        1e-9,
    ),
    Published("DeepSeek-V3 training, million USD", 2.788e6 * 2.0 / 1e6, 5.576, "arXiv 2412.19437", 1e-9),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.what)
def test_formula_reproduces_the_published_figure(row: Published) -> None:
    assert row.computed == pytest.approx(row.stated, rel=row.rel)


def test_price_of_a_million() -> None:
    assert formulas.usd_per_million(3.6, 1000) == pytest.approx(1.0)
    assert formulas.wh_per_million(360, 1000) == pytest.approx(100)
