"""``computekit plugins`` names what can be asked for by name."""

from __future__ import annotations

import json

from computekit.testing import run_command


def test_model_formats_are_named_as_all_else_is() -> None:
    listing = json.loads(run_command("plugins", "--json").stdout)
    formats = [item["name"] for item in listing["model_formats"]]
    assert {"safetensors", "onnx"} <= set(formats)
    shown = " ".join(run_command("plugins").stdout.split("Names:")[1].split())
    assert "model formats" in shown
    assert all(name in shown for name in formats)
