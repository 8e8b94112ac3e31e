"""Put the table of a real run into README.md, between its two table comments, with the machine that made it.

make run && .venv/bin/python scripts/update_readme_table.py results
"""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
PLACE = re.compile(r"(<!-- table: .*? -->\n).*?(<!-- /table -->)", re.DOTALL)


def device_of(results: Path) -> str:
    """The devices that the models' records name, and the versions that made them."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("models/*.record.json"))]
    devices = {f"{r['device']['name']}, {r['device']['threads']} thread a step" for r in records if r.get("device")}
    torch = {f"torch {r['versions']['torch']}" for r in records if "torch" in r["versions"]}
    return "; ".join([*sorted(devices), *sorted(torch), f"Python {platform.python_version()}"])


def main(results: Path) -> None:
    table = (results / "table.md").read_text(encoding="utf-8").strip()
    text = README.read_text(encoding="utf-8")
    body = f"\nMachine: {device_of(results)}.\n\n{table}\n\n"
    changed, count = PLACE.subn(lambda match: match[1] + body + match[2], text)
    if count != 1:
        sys.exit(f"{README}: the two table comments are missing")
    README.write_text(changed, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
