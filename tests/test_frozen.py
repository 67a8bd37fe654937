"""Frozen weights: the same bits everywhere, the right distribution."""

import math
import statistics

import numpy as np
import pytest
import torch

from onelayer_lottery.core.frozen import digest, frozen_weight, normal, uniform
from onelayer_lottery.frozen import weights as frozen
from onelayer_lottery.frozen.weights import INITS

# Golden: these may change only together with STREAM_VERSION.
GOLDEN = {
    "kaiming-uniform": "8bd5fa4f5cdfe8cfb2ca1b8fb8912d0e",
    "xavier-uniform": "35e4da9dfe8115dc5fd38b24ea153b2c",
    "kaiming-normal": "f449994353f7efe792f7aa87f9c4d9dd",
    "signed-constant": "6e71c7db7f2d7149f6c8830e0554b161",
    "normal-0.02": "96b39792aca4ae5e1e3c9a1e975259b7",
}


@pytest.mark.parametrize("init", INITS)
def test_the_bits_of_a_role_never_change(init):
    weight = frozen_weight(7, "decoder.layers.*.fc1", shape=(33, 65), init=init)
    assert digest(weight)[:32] == GOLDEN[init]


def test_the_stream_is_the_same_in_blocks_of_any_size(monkeypatch):
    whole = frozen_weight(1, "role", shape=(101, 99))
    monkeypatch.setattr(frozen, "_BLOCK", 1000)
    assert torch.equal(whole, frozen_weight(1, "role", shape=(101, 99)))


def test_seed_and_role_give_other_weights_and_nothing_else_does():
    first = frozen_weight(1, "a", shape=(8, 8))
    torch.manual_seed(99)
    np.random.seed(99)
    assert torch.equal(first, frozen_weight(1, "a", shape=(8, 8)))
    assert not torch.equal(first, frozen_weight(2, "a", shape=(8, 8)))
    assert not torch.equal(first, frozen_weight(1, "b", shape=(8, 8)))


@pytest.mark.parametrize(
    ("init", "std"),
    [
        ("kaiming-uniform", math.sqrt(2 / 300)),
        ("xavier-uniform", math.sqrt(2 / 800)),
        ("kaiming-normal", math.sqrt(2 / 300)),
        ("signed-constant", math.sqrt(2 / 300)),
    ],
)
def test_the_spread_is_that_of_the_init_and_scales_with_what_is_kept(init, std):
    full = frozen_weight(3, "r", shape=(500, 300), init=init, keep=0.25, fan="full")
    kept = frozen_weight(3, "r", shape=(500, 300), init=init, keep=0.25, fan="kept")
    assert full.std().item() == pytest.approx(std, rel=0.01)
    assert abs(full.mean().item()) < std / 100
    torch.testing.assert_close(kept, full * 2)


def test_uniform_weights_fill_their_range_and_are_never_zero():
    values = uniform(1, "r", shape=(1000, 1000), bound=0.5)
    assert values.abs().max() < 0.5
    assert values.abs().max() > 0.499
    assert int((values == 0).sum()) == 0
    counts = torch.histc(values, bins=10, min=-0.5, max=0.5)
    assert counts.min() > 98_500
    assert counts.max() < 101_500


def test_normal_weights_follow_the_normal_quantiles():
    bits = np.array([0, 9, 2**20, 104152957, 2**30, 2**31, 2**32 - 1], dtype=np.uint32)
    quantile = statistics.NormalDist().inv_cdf
    expected = [quantile((int(b) + 0.5) / 2**32) for b in bits]
    np.testing.assert_allclose(frozen._normal(bits), expected, rtol=1e-6)
    values = normal(1, "r", shape=(1000, 1000), std=3.0)
    assert values.std().item() == pytest.approx(3.0, rel=0.005)
    assert (values**4).mean().item() == pytest.approx(3 * 81, rel=0.02)


def test_an_unknown_init_is_named():
    with pytest.raises(ValueError, match="unknown init 'he': expected one of kaiming"):
        frozen_weight(1, "r", shape=(2, 2), init="he")
