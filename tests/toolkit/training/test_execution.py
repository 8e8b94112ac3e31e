"""Ways to carry out a recipe that must not change what is learnt: parts, recomputation, compiling, checkpoints."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from computekit import training
from computekit.datasets import Data, from_arrays, from_text
from computekit.errors import ComputekitError, FileProblem
from computekit.models import ArchRef, build
from computekit.training import checkpoint, memory

CPU = torch.device("cpu")
RECIPE = training.Recipe(epochs=3, batch_size=16, lr=0.01)


def _images(count: int = 100) -> Data:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(count) % 2
    inputs = torch.randn(count, 1, 16, 16, generator=generator) + targets[:, None, None, None]
    return from_arrays("images", inputs.numpy(), targets.numpy(), "")


def _resnet() -> nn.Module:
    torch.manual_seed(0)
    return build(ArchRef("resnet", {"classes": 2, "width": 4, "blocks": [1, 1]}))


def _gpt() -> nn.Module:
    torch.manual_seed(0)
    return build(ArchRef("gpt", {"context": 8, "dim": 16, "depth": 2, "heads": 2}))


def _text() -> Data:
    return from_text("text", bytes(range(97, 123)) * 20, "", window=8)


def _fit(module: nn.Module, data: Data, **execution: Any) -> training.FitResult:
    return training.fit(module, data, RECIPE, device=CPU, seed=0, execution=training.Execution(**execution))


def _close(a: nn.Module, b: nn.Module, atol: float) -> bool:
    theirs = b.state_dict()
    return all(torch.allclose(value, theirs[key], atol=atol) for key, value in a.state_dict().items())


def test_parts_of_a_step_add_up_to_the_step() -> None:
    whole, parts = _gpt(), _gpt()
    first = _fit(whole, _text())
    second = _fit(parts, _text(), accumulate=5)  # 16 samples are not a multiple of 5
    assert [e["loss"] for e in first.history] == pytest.approx([e["loss"] for e in second.history], abs=1e-4)
    assert first.train_flops == second.train_flops


def test_more_parts_than_samples_are_refused() -> None:
    with pytest.raises(ComputekitError, match="--batch-size 16 cannot be shared among 1 ranks in 17 parts"):
        _fit(_gpt(), _text(), accumulate=17)


@pytest.mark.parametrize("kind", ["resnet", "gpt"])
def test_recomputation_changes_nothing_but_the_flops(kind: str) -> None:
    make, data = (_resnet, _images()) if kind == "resnet" else (_gpt, _text())
    plain, again = make(), make()
    first, second = _fit(plain, data), _fit(again, data, recompute=True)
    assert _close(plain, again, atol=0)
    assert first.history == second.history
    assert first.train_flops == second.train_flops == first.hardware_flops < second.hardware_flops
    assert all("forward" not in vars(m) for m in again.modules())


def test_recomputation_of_every_block_costs_one_more_forward_pass_of_the_blocks() -> None:
    result = _fit(_gpt(), _text(), recompute=True)
    tokens, dim = 8, 16
    matrices = 2 * tokens * (4 * dim * dim + 8 * dim * dim)
    attention = 2 * 2 * tokens * tokens * dim
    extra = (result.hardware_flops - result.train_flops) / result.samples
    assert extra == 2 * (matrices + attention)
    everything = 3 * (2 * (matrices + attention) + 2 * tokens * dim * 256)
    assert result.train_flops / result.samples == everything


def test_blocks_are_the_repeated_ones() -> None:
    assert len(memory.blocks_of(_gpt())) == 2
    assert len(memory.blocks_of(build(ArchRef("resnet")))) == 3
    assert memory.blocks_of(build(ArchRef("mlp"))) == []
    with pytest.raises(ComputekitError, match="has no repeated blocks to --recompute"):
        _fit(nn.Sequential(nn.Flatten(), nn.Linear(256, 2)), _images(), recompute=True)


@pytest.mark.slow
def test_a_compiled_model_learns_the_same() -> None:
    plain, compiled = _gpt(), _gpt()
    first, second = _fit(plain, _text()), _fit(compiled, _text(), compile=True)
    assert [e["loss"] for e in first.history] == pytest.approx([e["loss"] for e in second.history], rel=1e-2)
    assert list(plain.state_dict()) == list(compiled.state_dict())


def test_out_of_memory_says_what_is_known_and_what_to_try() -> None:
    def loss(logits: Tensor, _inputs: Tensor, _targets: Tensor) -> Tensor:
        torch.empty(1 << 50)
        return logits.sum()

    with pytest.raises(
        ComputekitError,
        match=r"out of memory on cpu with 8 samples at a time \(weights .* MB, activations at most .* MB.*--recompute",
    ):
        training.fit(_gpt(), _text(), RECIPE, device=CPU, seed=0, loss=loss, execution=training.Execution(accumulate=2))


def test_the_time_of_the_parts_adds_up() -> None:
    result = _fit(_gpt(), _text())
    assert {"data", "forward", "backward", "optimizer", "validation"} <= set(result.seconds)
    assert 0 < sum(result.seconds.values()) <= result.total_s
    assert result.peak_memory_bytes is None or result.peak_memory_bytes > 1e6


def test_a_trace_is_a_chrome_trace(tmp_path: Path) -> None:
    import json

    result = _fit(_gpt(), _text(), trace=tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert any("addmm" in str(event.get("name")) for event in events)
    assert "aten::addmm" in result.trace_table


# -- checkpoints -----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands in for a kill."""


def _killed_at(step: int, monkeypatch: pytest.MonkeyPatch, checkpoint: Path, every: int | None) -> None:
    original, count = torch.optim.AdamW.step, 0

    def dying(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count > step:
            raise Killed
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(torch.optim.AdamW, "step", dying)
        module = _resnet()
        torch.manual_seed(0)
        _fit(module, _images(), checkpoint=checkpoint, checkpoint_every=every)


@pytest.mark.parametrize("every", [None, 1, 2, 4])
@pytest.mark.parametrize("step", [0, 1, 4, 5, 6, 9])
def test_going_on_gives_the_same_bits(
    step: int, every: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, resumed = _resnet(), _resnet()
    expected = _fit(straight, _images())
    _killed_at(step, monkeypatch, tmp_path / "c", every)
    torch.manual_seed(77)  # whatever the new process did before
    result = _fit(resumed, _images(), checkpoint=tmp_path / "c", checkpoint_every=every)
    assert _close(straight, resumed, atol=0)
    assert (result.best_epoch, result.samples) == (expected.best_epoch, expected.samples)
    assert [e["validation_loss"] for e in result.history] == [e["validation_loss"] for e in expected.history]
    assert [e["loss"] for e in result.history] == pytest.approx([e["loss"] for e in expected.history], rel=1e-6)
    assert torch.equal(result.validation.outcomes, expected.validation.outcomes)


def test_a_finished_training_is_only_evaluated_again(tmp_path: Path) -> None:
    first, second = _resnet(), _resnet()
    (tmp_path / ".c.0123abcd.tmp").write_text("half a checkpoint")
    _fit(first, _images(), checkpoint=tmp_path / "c")
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    result = _fit(second, _images(), checkpoint=tmp_path / "c")
    assert _close(first, second, atol=0) and result.samples_per_s is None


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    _fit(_resnet(), _images(), checkpoint=tmp_path / "c")
    with pytest.raises(FileProblem, match="is of another training: data was"):
        _fit(_resnet(), _images(120), checkpoint=tmp_path / "c")
    with pytest.raises(FileProblem, match=r"seed was 0 and is now 1; give the same options, or delete it"):
        training.fit(
            _resnet(), _images(), RECIPE, device=CPU, seed=1, execution=training.Execution(checkpoint=tmp_path / "c")
        )
    for content in (b"", b"hello"):
        (tmp_path / "c").write_bytes(content)
        with pytest.raises(FileProblem, match="is not a checkpoint"):
            _fit(_resnet(), _images(), checkpoint=tmp_path / "c")
    torch.save({"a": 1}, tmp_path / "c")
    with pytest.raises(FileProblem, match="is not a checkpoint of this version"):
        _fit(_resnet(), _images(), checkpoint=tmp_path / "c")


def test_dropout_goes_on_with_the_same_random_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    monkeypatch.setitem(globals(), "_resnet", make)
    straight, resumed = make(), make()
    torch.manual_seed(0)
    _fit(straight, _images())
    _killed_at(7, monkeypatch, tmp_path / "c", 3)
    torch.manual_seed(77)
    _fit(resumed, _images(), checkpoint=tmp_path / "c", checkpoint_every=3)
    assert _close(straight, resumed, atol=0)


def test_a_checkpoint_for_which_the_disk_has_no_room_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # a write beyond it fails as on a full disk
    try:
        with pytest.raises(FileProblem, match=r"m\.checkpoint: cannot be written"):
            checkpoint.save(tmp_path / "m.checkpoint", {}, {"weights": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


class _NaNInValidation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x.flatten(1))
        return found if self.training else found * torch.nan


def test_training_that_diverges_only_in_validation_names_the_learning_rate() -> None:
    with pytest.raises(ComputekitError, match=r"in epoch 1, by step 5; try a smaller --lr than 0\.01"):
        training.fit(_NaNInValidation(), _images(), RECIPE, device=CPU, seed=0)
