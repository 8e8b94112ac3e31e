"""How often the trial rule of ``computekit benchmark`` errs on this machine, with the raw data.

    python benchmarks/aa_verdicts.py --pairs 8  -o aa.jsonl        # a few minutes
    python benchmarks/aa_verdicts.py --pairs 80 -o aa.jsonl        # 20 of each workload, half an hour and more

Each pair is a model against a copy of itself (a verdict of faster or slower is false) and against itself with 5 % more
layers (slower is right). OUTPUT gets one JSON line per pair, with the ratio of every trial; it is continued where it
ends. The reach: at most 1 false verdict in 80 pairs, and at least 95 % of the 5 % differences found.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from computekit_benchmark import selftest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=Path("aa_verdicts.jsonl"))
    options = parser.parse_args()
    lines = options.output.read_text(encoding="utf-8").splitlines() if options.output.exists() else []
    pairs: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def keep(pair: dict[str, Any]) -> None:
        pairs.append(pair)
        with options.output.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(pair) + "\n")
        print(pair["workload"], pair["same_model"]["verdict"], pair["five_percent"]["verdict"], flush=True)

    finished = selftest.run(
        float("inf"),
        clock=options.clock,
        threads=options.threads,
        seed=len(pairs),
        first=len(pairs),
        max_pairs=options.pairs - len(pairs),
        after_pair=keep,
    )
    print(selftest.describe(selftest.report(pairs) | {"machine": finished["machine"]}))


if __name__ == "__main__":
    main()
