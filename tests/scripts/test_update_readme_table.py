"""The README's table comes from a run, with the machine that made it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_table_and_machine_go_between_the_comments(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "update_readme_table.py", tmp_path / "scripts")
    shutil.copy(ROOT / "README.md", tmp_path)
    models = tmp_path / "results" / "models"
    models.mkdir(parents=True)
    record = {"device": {"name": "AMD EPYC", "threads": 1}, "versions": {"torch": "2.13.0"}}
    (models / "a.pt.record.json").write_text(json.dumps(record), encoding="utf-8")
    for cells in ("| first |", "| second |"):
        (tmp_path / "results" / "table.md").write_text(f"{cells}\n", encoding="utf-8")
        subprocess.run([sys.executable, script, str(tmp_path / "results")], check=True)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "Machine: AMD EPYC, 1 thread a step; torch 2.13.0;" in text
    assert "| second |" in text
    assert "| first |" not in text
    assert text.startswith("# computekit\n")
    assert text.endswith("see [LICENSE](LICENSE).\n")
