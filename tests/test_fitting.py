"""Starting from a trained weight."""

import itertools

import pytest
import torch

from onelayer_lottery.core.fitting import fit
from onelayer_lottery.core.frozen import frozen_weight
from onelayer_lottery.core.mask import flip_signs, top_k_mask
from onelayer_lottery.core.modules import draw_scores, first_scales, scaled

KINDS = ["none", "tensor", "row", "row-column"]


def distance(trained, frozen, scores, scales, keep=0.5):
    return (trained - scaled(frozen * top_k_mask(scores, keep), scales)).pow(2).sum()


def test_without_scales_no_mask_is_closer():
    """Against every mask of the same count."""
    frozen = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    trained = torch.randn(2, 4, generator=torch.Generator().manual_seed(2))
    scores = fit(trained, frozen, keep=0.5, scales=[])
    best = min(
        (trained.view(-1) - frozen.view(-1) * torch.tensor(mask)).pow(2).sum()
        for mask in itertools.product([0, 1], repeat=8)
        if sum(mask) == 4
    )
    torch.testing.assert_close(distance(trained, frozen, scores, []), best)


def test_no_signed_mask_is_closer():
    """Against every signed mask of the same count."""
    frozen = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    trained = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
    scores = fit(trained, frozen, keep=0.5, scales=[], signed=True)
    best = min(
        (trained.view(-1) - frozen.view(-1) * torch.tensor(mask)).pow(2).sum()
        for mask in itertools.product([-1, 0, 1], repeat=6)
        if sum(map(abs, mask)) == 3
    )
    found = distance(trained, flip_signs(frozen, scores), scores, [])
    torch.testing.assert_close(found, best)


@pytest.mark.parametrize("init", ["signed-constant", "kaiming-uniform"])
def test_each_finer_scale_comes_closer(init):
    frozen = frozen_weight(1, "a", shape=(40, 60), init=init)
    sizes = torch.linspace(0.1, 3, 40)[:, None] * torch.linspace(0.2, 2, 60)
    trained = torch.randn(40, 60, generator=torch.Generator().manual_seed(1)) * sizes
    found = []
    for kind in KINDS:
        scales = first_scales((40, 60), kind)
        scores = fit(trained, frozen, keep=0.5, scales=scales)
        assert all(torch.isfinite(scale).all() for scale in scales)
        found.append(float(distance(trained, frozen, scores, scales)))
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.7 * float(trained.pow(2).sum())


def test_scores_are_in_the_range_of_random_ones():
    frozen = frozen_weight(1, "a", shape=(40, 60))
    scores = fit(torch.randn(40, 60), frozen, keep=0.5, scales=[])
    random = draw_scores(1, "a", (40, 60)).abs()
    assert scores.min() > 0
    torch.testing.assert_close(scores.max(), random.max(), rtol=0.02, atol=0)
    torch.testing.assert_close(scores.mean(), random.mean(), rtol=0.02, atol=0)


def test_a_row_of_zeros_gets_a_finite_scale():
    frozen = frozen_weight(1, "a", shape=(6, 8), padding=1)
    scales = first_scales((6, 8), "row")
    fit(torch.randn(6, 8), frozen, keep=0.5, scales=scales)
    assert scales[0][1] == 1
