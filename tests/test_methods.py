"""Adding a mask method, as docs/methods.md shows it."""

import argparse
import re

import pytest
import torch
from conftest import ROOT
from stock import translation_task
from test_convert import checkpoint_of, trained_model

from onelayer_lottery import masked_weight
from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.core.methods import METHODS, MaskMethod
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.planting.config import add_mask_args


@pytest.fixture
def above_mean():
    """The example of the documentation, run as it stands there."""
    before = dict(METHODS)
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.+?)```", page, re.DOTALL).group(1), {})
    yield "above-mean"
    METHODS.clear()
    METHODS.update(before)


def test_the_example_masks_and_learns(above_mean):
    weight = masked_weight((6, 8), method=above_mean)
    magnitude, frozen = weight.scores.detach().abs(), weight.frozen.weight
    expected = frozen * (magnitude > magnitude.mean(1, keepdim=True))
    assert torch.equal(weight().detach(), expected)
    upstream = torch.randn(6, 8)
    weight().backward(upstream)
    slope = upstream * frozen * weight.scores.detach().sign()
    assert torch.equal(weight.scores.grad, slope)


def test_the_flag_takes_the_methods_that_were_added(above_mean, capsys):
    parser = argparse.ArgumentParser()
    add_mask_args(parser)
    assert parser.parse_args(["--mask-method", above_mean]).mask_method == above_mean
    with pytest.raises(SystemExit):
        parser.parse_args(["--mask-method", "below-mean"])
    assert "above-mean" in capsys.readouterr().err


def test_a_model_with_an_added_method_is_not_made_into_a_ticket(above_mean):
    model = trained_model(translation_task(), mask_method=above_mean)
    assert model.identity()["--mask-method"] == above_mean
    with pytest.raises(LotteryError, match="mask_method"):
        ticket_from_checkpoint(checkpoint_of(model))


def test_a_method_may_keep_state_between_updates(monkeypatch):
    class Counting(MaskMethod):
        calls = 0

        def mask(self, weight):
            self.calls += 1
            return torch.full_like(weight.scores, self.calls)

    monkeypatch.setitem(METHODS, "counting", Counting)
    first, second = (masked_weight((2, 3), method="counting") for _ in range(2))
    for update in (1, 1, 2):
        first.set_num_updates(update)
        first()
    assert torch.equal(first().detach(), 2 * first.frozen.weight)
    assert torch.equal(second().detach(), second.frozen.weight)
