"""``--input-shape``: shapes, types, several inputs and plain numbers, and the tensors that they stand for."""

from __future__ import annotations

from typing import Any

import click
import pytest
import torch
from torch import nn

from computekit import ComputekitError, inputs
from computekit.inputs import Input, InputShapes
from computekit.models import ArchRef
from computekit.models.examples import example_inputs


def parse(text: str) -> tuple[Input, ...]:
    return InputShapes().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3,224,224", (Input((3, 224, 224)),)),
        ("3x224x224", (Input((3, 224, 224)),)),
        ("128:int64", (Input((128,), "int64"),)),
        ("128:int64 + 128:bool", (Input((128,), "int64"), Input((128,), "bool"))),
        ("4x8x8+:int64", (Input((4, 8, 8)), Input((), "int64"))),
        ("512+value=16000", (Input((512,)), Input(value=16000))),
        ("512+value=0.5", (Input((512,)), Input(value=0.5))),
        ("", (Input(()),)),
    ],
)
def test_spellings(text: str, found: tuple[Input, ...]) -> None:
    assert parse(text) == found
    assert parse("+".join(map(str, found))) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3,x", "not a list of whole numbers above zero"),
        ("3,0", "not a list of whole numbers above zero"),
        ("-3", "not a list of whole numbers above zero"),
        ("3:int65", "'int65' is no type of numbers"),
        ("3:", "'' is no type of numbers"),
        ("value=nan", "not a finite number"),
        ("value=", "not a finite number"),
    ],
)
def test_what_is_wrong_with_a_spelling(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        parse(text)


class Two(nn.Module):
    """Token ids and a mask, as language models take them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, scale: int) -> torch.Tensor:
        y: torch.Tensor = self.head(self.table(ids) * mask.unsqueeze(2) * scale)
        return y


def make(text: str, module: nn.Module, **more: Any) -> tuple[Any, ...]:
    return example_inputs(module, ArchRef("mine:Two"), shapes=parse(text), **more)


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_with_several_inputs_runs_on_its_examples(scripted: bool) -> None:
    module = torch.jit.script(Two()) if scripted else Two()
    ids, mask, scale = make("7+7:int64+value=3", module, batch=2)
    assert ids.dtype == torch.int64 and 0 <= int(ids.min()) < int(ids.max()) < 50
    assert mask.shape == (2, 7) and mask.unique().tolist() == [1]
    assert scale == 3
    assert module(ids, mask, scale).shape == (2, 7, 2)


def test_floats_have_the_type_that_the_model_computes_in_or_that_was_asked_for() -> None:
    half = nn.Linear(3, 2).half()
    first, second = make("3+3:float32", half, batch=4)
    assert first.dtype == torch.float16 and second.dtype == torch.float32
    assert torch.equal(first, make("3", half, batch=4)[0])
    assert not torch.equal(first, make("3", half, batch=4, seed=1)[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_where_nothing_tells_the_inputs_the_error_tells_the_arguments() -> None:
    for module in (Two(), torch.jit.script(Two())):
        with pytest.raises(ComputekitError, match=r"mine:Two \(ids.*, mask.*, scale.*\); say it with .*--input-shape"):
            example_inputs(module, ArchRef("mine:Two"))


def test_the_vocabulary_is_that_of_a_first_embedding() -> None:
    assert inputs.vocabulary(Two()) == 50
    assert inputs.vocabulary(nn.Sequential(nn.Linear(2, 2), nn.Embedding(9, 2))) is None
    assert inputs.vocabulary(nn.ReLU()) is None
