"""The flip rate, by itself and in fairseq's log."""

import re

import pytest
import torch
from torch import nn

from onelayer_lottery import MaskedLinear, masked_weight
from onelayer_lottery.monitoring.flip_rate import INTERVAL, FlipRate


@pytest.fixture
def model():
    return nn.Sequential(MaskedLinear(masked_weight((4, 5))))


def swap_two_bits(model: nn.Module) -> None:
    weight = model[0].masked
    with torch.no_grad():
        places = [weight.mask().flatten().tolist().index(bit) for bit in (True, False)]
        scores = weight.scores.view(-1)
        scores[places] = scores[places].flip(0)


def test_the_rate_is_the_fraction_of_bits_turned_by_one_update(model):
    rate = FlipRate()
    assert rate.after(model, INTERVAL - 1) is None
    swap_two_bits(model)
    assert rate.after(model, INTERVAL) == 2 / 20
    assert rate.after(model, INTERVAL) is None  # another batch of the update
    swap_two_bits(model)
    assert rate.after(model, INTERVAL + 1) is None


def test_nothing_is_told_across_a_gap(model):
    rate = FlipRate()
    rate.after(model, INTERVAL - 1)
    swap_two_bits(model)
    assert rate.after(model, INTERVAL + 1) is None


def test_fairseq_logs_the_rate(fairseq):
    done = fairseq.train(
        *("data-bin", "flips", "--max-update", INTERVAL + 1),
        *("--max-tokens", 200, "--disable-validation", "--no-save"),
    )
    rates = re.findall(r"flip_rate=([0-9.e-]+)", done.log)
    assert rates
    assert all(0 < float(rate) < 0.2 for rate in rates)
