"""Memory follows the largest tensor, not the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from computekit.models.huggingface import FolderWriter
from computekit.models.safetensors_files import SafetensorsWriter
from computekit.models.torch_writer import TorchWriter

MEGABYTE = 1 << 20
REWRITE = """
import sys
from pathlib import Path
import torch
from computekit.models import kinds, open_model, rewrite
from computekit.models.inspection import inspect

def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

torch.ones(1000).half()
for kind in kinds.BUILTIN:
    kind.sniff(Path(__file__) if "__file__" in globals() else Path(sys.executable))
before = peak()
source, target = map(Path, sys.argv[1:])
rewrite(open_model(source), target, lambda info, load: [(info.name, load().half())])
inspect(source)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak resident set from /proc")
@pytest.mark.parametrize("kind", ["torch", "safetensors", "folder"])
def test_peak_memory(kind: str, tmp_path: Path) -> None:
    """400 MB in tensors of 8 MB: three times the largest and a little more is enough for rewriting and inspecting."""
    writers = {"torch": TorchWriter, "safetensors": SafetensorsWriter, "folder": FolderWriter}
    with writers[kind](None, tmp_path / "source") as writer:
        for index in range(50):
            name = f"layers.{index}.weight"
            writer.add(name, torch.full((2 * MEGABYTE,), float(index)), name)
        writer.finish({})
    words = [sys.executable, "-c", REWRITE, str(tmp_path / "source"), str(tmp_path / "target")]
    grown = int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    assert grown < 3 * 8 * MEGABYTE + 100 * MEGABYTE
