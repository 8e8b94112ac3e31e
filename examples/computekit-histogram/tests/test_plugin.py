"""The picture that histogram draws, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

from computekit.testing import Outcome

Run = Callable[..., Outcome]


def test_the_picture_is_the_same_twice(run_computekit: Run, small_model: Path) -> None:
    for name in ("a.svg", "b.svg"):
        outcome = run_computekit("histogram", str(small_model), "-o", name)
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.stdout.startswith(f"{name}: 3 tensors")
    assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes()
    assert "<svg" in Path("a.svg").read_text()


def test_bad_input_is_one_line(run_computekit: Run, tmp_path: Path, small_model: Path) -> None:
    (tmp_path / "text.pt").write_text("no model")
    for words in (["text.pt"], [str(small_model), "-o", "missing/a.svg"]):
        outcome = run_computekit("histogram", *words)
        assert (outcome.exit_code, outcome.stdout) == (1, "")
        assert outcome.stderr.startswith("Error: ")
        assert outcome.stderr.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".svg"] == []
