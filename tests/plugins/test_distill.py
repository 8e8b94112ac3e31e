"""``computekit distill``: the loss, the student's record, the control, and what goes wrong."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import computekit
from computekit import records
from computekit.cli import main
from computekit.models import ArchRef, build, save_module
from computekit_distill import losses
from computekit_distill.loss import LogitDistillation


class Table(nn.Module):
    """Logits from a table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, index: Tensor) -> Tensor:
        return self.table[index]


@given(temperature=st.floats(0.5, 10), alpha=st.floats(0, 1), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_loss_is_hinton_s(temperature: float, alpha: float, seed: int) -> None:
    torch.manual_seed(seed)
    teacher, student, targets = torch.randn(6, 5), torch.randn(6, 5), torch.randint(0, 5, (6,))
    loss = LogitDistillation(Table(teacher), temperature, alpha)(student, torch.arange(6), targets)
    p, q = (teacher / temperature).softmax(-1), (student / temperature).softmax(-1)
    soft = (p * (p / q).log()).sum(-1).mean()
    hard = -student.log_softmax(-1)[torch.arange(6), targets].mean()
    assert loss.item() == pytest.approx((alpha * temperature**2 * soft + (1 - alpha) * hard).item(), rel=1e-4, abs=1e-5)


def test_positions_of_a_text_are_samples() -> None:
    torch.manual_seed(0)
    teacher, index, targets = torch.randn(6, 5), torch.arange(6).view(2, 3), torch.randint(0, 5, (2, 3))
    student = torch.randn(2, 3, 5)
    loss = LogitDistillation(Table(teacher), 2.0, 0.5)
    assert loss(student, index, targets).item() == pytest.approx(
        loss(student.view(6, 5), index.view(6), targets.view(6)).item(), rel=1e-6
    )


def test_a_student_that_equals_its_teacher_has_no_soft_loss_and_no_gradient() -> None:
    teacher = torch.randn(6, 5)
    student = teacher.clone().requires_grad_()
    LogitDistillation(Table(teacher), 4.0, 1.0)(student, torch.arange(6), torch.zeros(6, dtype=torch.long)).backward()
    assert student.grad is not None and student.grad.abs().max() < 1e-6


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(words: str) -> Result:
    return CliRunner().invoke(main, shlex.split(words))


@pytest.fixture
def teacher() -> str:
    assert _run("train --arch mlp --data digits --epochs 2 -o teacher.pt").exit_code == 0
    return "teacher.pt"


def test_the_student_the_control_and_the_record(teacher: str) -> None:
    words = "--student mlp --student-args hidden=8,depth=1 --epochs 2"
    result = _run(f"distill {teacher} {words} --control")
    assert result.exit_code == 0, result.output
    assert "accuracy of teacher" in result.output and "accuracy of control" in result.output
    _, arch, metadata = computekit.load_module("teacher-distilled.pt")
    assert arch.args["hidden"] == 8 and metadata["data"] == "digits"
    record = records.load("teacher-distilled.pt.record.json")
    quantities = record.rows[0].quantities
    teacher_record = records.load("teacher.pt.record.json")
    taught = teacher_record.rows[0].quantities
    assert quantities["teacher_accuracy"].value == taught["accuracy"].value
    assert quantities["accuracy_difference"].value == pytest.approx(
        quantities["accuracy"].value - quantities["teacher_accuracy"].value  # type: ignore[operator]
    )
    assert quantities["accuracy_difference_to_control"].interval is not None
    # the control is exactly what train gives for the same seed and recipe
    assert _run("train --arch mlp --arch-args hidden=8,depth=1 --epochs 2 --data digits -o c.pt").exit_code == 0
    control = records.load("c.pt.record.json")
    assert control.rows[0].quantities["accuracy"].value == quantities["control_accuracy"].value
    assert control.details["history"] == record.details["control_history"]
    # teacher's training + student's own + the teacher's forward passes on every batch; the control is not part of it
    samples = 2 * record.details["data"]["samples"]["train"]
    forward = samples * 2 * (64 * 128 + 128 * 128 + 128 * 10)
    own = control.rows[0].quantities["train_flops"].value
    assert quantities["train_flops"].value == taught["train_flops"].value + own + forward  # type: ignore[operator]
    assert quantities["control_train_flops"].value == own


def test_alpha_0_is_training_from_the_labels(teacher: str) -> None:
    assert _run(f"distill {teacher} --student mlp --alpha 0 --epochs 1 -o s.pt").exit_code == 0
    assert _run("train --arch mlp --data digits --epochs 1 -o c.pt").exit_code == 0
    a, b = (torch.load(name, weights_only=True)["state_dict"] for name in ("s.pt", "c.pt"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_text() -> None:
    Path("t.txt").write_bytes(b"abcd" * 1500)
    small = "dim=16,depth=1,heads=2"
    assert _run(f"train --arch gpt --arch-args {small} --data t.txt --epochs 1 --lr 0.02 -o t.pt").exit_code == 0
    result = _run(f"distill t.pt --student gpt --student-args {small} --epochs 1 --lr 0.02 --control -o s.pt")
    assert result.exit_code == 0, result.output
    quantities = records.load("s.pt.record.json").rows[0].quantities
    ratio = quantities["perplexity"].value / quantities["control_perplexity"].value  # type: ignore[operator]
    assert quantities["perplexity_ratio_to_control"].value == pytest.approx(ratio)


def test_what_goes_wrong_is_one_line(teacher: str) -> None:
    arch = ArchRef("mlp", {"classes": 4})
    save_module(build(arch), "four.pt", arch, data="digits")
    save_module(build(ArchRef("mlp")), "nodata.pt", ArchRef("mlp"))
    Path("text.pt").write_text("hello")
    for words, message in [
        (f"distill {teacher} --student mpl", "did you mean mlp?"),
        (f"distill {teacher} --student gpt", "architecture 'gpt' is for language-modeling"),
        ("distill nodata.pt --student mlp", "does not say what data it was trained on"),
        ("distill four.pt --student mlp", "tells 4 classes apart"),
        ("distill text.pt --student mlp", "text.pt: "),
        (f"distill {teacher} --student mlp --data mnist5k", "teacher.pt cannot take samples of shape 1x28x28"),
        (f"distill {teacher} --student mlp -o {teacher}", "is the input itself"),
    ]:
        result = _run(words)
        assert (result.exit_code, result.output.strip().count("\n")) == (1, 0), result.output
        assert message in result.output


def test_every_loss_is_zero_for_equal_logits_and_pulls_towards_the_teacher() -> None:
    for loss in losses.BUILTIN:
        taught = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5]])
        assert loss.compare(taught, taught, 3.0).item() == pytest.approx(0, abs=1e-6)
        student = torch.zeros(2, 3, requires_grad=True)
        loss.compare(student, taught, 3.0).backward()
        assert student.grad is not None
        assert ((-student.grad * (taught - taught.mean(1, keepdim=True))).sum(1) > 0).all(), loss.name


def test_an_unknown_loss_names_the_nearest() -> None:
    with pytest.raises(computekit.UnknownName, match="did you mean mse"):
        losses.find("msee")
