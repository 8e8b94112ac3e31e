"""computekit estimator count: code that runs its operators once for each token."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from computekit import ComputekitError, flops
from computekit_estimator import count, lengths, source


class Loop(nn.Module):
    """A recurrence over tokens, then attention over all of them."""

    def __init__(self):
        super().__init__()
        self.step, self.attention = nn.Linear(4, 4), nn.MultiheadAttention(4, 2)

    def forward(self, x):
        states = [self.step(x[0])]
        for now in x[1:]:
            states.append(self.step(now + states[-1]))
        whole = torch.stack(states)
        return self.attention(whole, whole, whole)[0]


class Chunks(nn.Module):
    """A loop inside chunks of 64 tokens, to which shorter texts are padded."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(-(-len(x) // 64)):
            for _ in range(50):
                x = self.step(x)
        return x


def subject_of(module, tokens):
    """A subject whose samples are ``tokens`` vectors of four."""
    subject = source.Subject(label="loop", module=module)

    def shorten(tokens):
        subject.tokens, subject.inputs = tokens, (torch.zeros(tokens, 4),)

    shorten(tokens)
    subject.shorten = shorten
    return subject


@pytest.mark.parametrize(("most", "step"), [(2000, 16), (300, 2)])
def test_a_loop_over_tokens_counts_as_if_it_had_run(monkeypatch, most, step):
    direct = flops.count(Loop(), torch.zeros(512, 4))
    monkeypatch.setattr(count, "FEW_OPERATORS", most)
    monkeypatch.setattr(count, "MOST_OPERATORS", most)
    subject = subject_of(Loop(), 512)
    cost = count.counted(subject)
    assert (cost.forward, cost.backward, cost.forward_other) == (direct.forward, direct.backward, direct.forward_other)
    assert cost.activation_bytes == direct.activation_bytes
    assert cost.by_module == direct.by_module
    assert subject.tokens == 512 and f"samples of {step} to {4 * step} tokens" in subject.how


def test_chunks_are_no_loop_over_tokens():
    counts = [flops.count(Chunks(), torch.zeros(length, 4)) for length in lengths.samples(16)]
    assert lengths.extended(counts, 16, 512) is None


def test_a_loop_that_cannot_be_told_is_counted_with_fewer_tokens(monkeypatch):
    monkeypatch.setattr(count, "FEW_OPERATORS", 1000)
    monkeypatch.setattr(count, "MOST_OPERATORS", 1000)
    subject = subject_of(Chunks(), 500)
    count.counted(subject)
    assert (subject.tokens, subject.how) == (count.FEWER_TOKENS, "")


def test_a_loop_of_unknown_samples_says_what_to_do(monkeypatch):
    monkeypatch.setattr(count, "MOST_OPERATORS", 300)
    subject = source.Subject(label="loop", module=Loop(), inputs=(torch.zeros(100, 4),), tokens=100)
    with pytest.raises(ComputekitError, match="more than 300 operators; give fewer tokens with --seq"):
        count.counted(subject)
