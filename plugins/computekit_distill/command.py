"""``computekit distill``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import computekit
from computekit import options, training

if TYPE_CHECKING:
    from torch import nn

    from computekit.evaluation import Evaluation


@click.command()
@click.argument("teacher", type=options.InputPath("model"))
@options.arch("--student", required=True)
@options.data(help="Data set to distil on.  [default: the one the teacher was trained on]")
@click.option(
    "--temperature", type=options.Number(above=0), default=4.0, show_default=True,
    help="Softens both distributions: softmax(logits / temperature).",
)  # fmt: skip
@click.option(
    "--alpha", type=options.Number(at_least=0, at_most=1), default=0.9, show_default=True,
    help="Weight of the teacher's distribution; the rest is for the true labels.",
)  # fmt: skip
@click.option("--loss", type=options.HostNames("computekit_distillation_losses", "name"), default="kl",
              show_default=True, help="How teacher and student are compared.")  # fmt: skip
@click.option("--control", is_flag=True, help="Also train the same student without the teacher, and report the gain.")
@options.arch()
@options.trust_pickle
@training.recipe_options()
@options.step
def distill(
    run: computekit.StepRun,
    teacher: Path,
    student: str,
    student_args: dict[str, Any] | None,
    data: str | None,
    temperature: float,
    alpha: float,
    loss: str,
    control: bool,
    arch: str | None,
    arch_args: dict[str, Any] | None,
    trust_pickle: bool,
    recipe: training.Recipe,
) -> None:
    """Train a student architecture to imitate the output distribution of TEACHER (logit distillation, Hinton et al.
    2015), for classification and for text. The best epoch is chosen on the validation split; the metric is of the
    test split. --loss takes those of plugins too. --arch says the teacher's architecture where its file does not. With
    --control the same student is also trained from the labels alone, from the same seed and with the same recipe, and
    the gain is reported.

    \b
    Example:
      computekit distill model.pt --student mlp -o student.pt
      computekit distill model.pt --student resnet --student-args width=8 --control -o small.pt
    """
    import torch

    from computekit import evaluation, flops, models, zoo
    from computekit.models.formats import check_saved_name

    from . import losses
    from .loss import LogitDistillation

    compare = losses.find(loss).compare

    run.input(teacher)
    target = run.output(teacher.with_stem(f"{teacher.stem}-distilled").with_suffix(".pt"))
    check_saved_name(target)
    device = run.device
    teacher_module, _, metadata = computekit.load_module(
        teacher, models.ArchRef(arch, arch_args or {}) if arch else None, trust_pickle=trust_pickle
    )
    data = data or metadata.get("data")
    if data is None:
        raise computekit.FileProblem(teacher, "does not say what data it was trained on", "name the data with --data")
    dataset = computekit.load_data(data, model=teacher)
    reference = zoo.for_data(student, student_args, dataset)
    name = f"student {student!r}"
    teacher_module.to(device)
    taught = evaluation.evaluate(teacher_module, dataset.test, dataset.task, device, name=str(teacher))

    def train(loss: training.Loss) -> tuple[nn.Module, training.FitResult, Evaluation | str]:
        torch.manual_seed(run.seed)
        module = models.build(reference)
        result = training.fit(
            module, dataset, recipe, device=device, seed=run.seed, progress=run.progress, name=name, loss=loss
        )
        return module, result, training.tested(module, dataset, result, device, name=name)

    module, result, test = train(LogitDistillation(teacher_module, temperature, alpha, str(teacher), compare))
    alone = train(training.cross_entropy) if control and not isinstance(test, str) else None
    with run.writing(target) as temporary:
        computekit.save_module(module, temporary, reference, data=data)
    training.report(run, module, dataset, result, test)
    run.put("file_bytes", target.stat().st_size, "B")
    taught_flops = flops.count(teacher_module, dataset.train.inputs[:2].to(device), backward=False).forward
    run.spent_training(taught_flops / 2 * result.samples)  # the teacher looks at every training sample, too
    run.put(f"teacher_{taught.metric}", **taught.quantity())
    if isinstance(test, str):
        return
    key, estimate = evaluation.difference(taught, test)
    run.put(key, estimate.value, **estimate.about)
    if alone:
        _, control_result, control_test = alone
        if isinstance(control_test, str):
            run.unknown(f"control_{test.metric}", control_test)
        else:
            run.put(f"control_{test.metric}", **control_test.quantity())
            key, estimate = evaluation.difference(control_test, test)
            run.put(f"{key}_to_control", estimate.value, **estimate.about)
        run.put("control_train_flops", control_result.train_flops, "FLOP")
        run.details["control_history"] = control_result.history
        run.note("the control is one run of the same student, seed and recipe; its interval is over test samples only")
