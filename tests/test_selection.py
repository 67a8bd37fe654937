"""The selection for accelerators, run on the CPU: the same bits, and no waiting."""

import math
import sys

import numpy as np
import pytest
import torch
from conftest import FAKE_DEVICES, ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onelayer_lottery import kept_count, masked_weight, top_k_mask
from onelayer_lottery.core import reference
from onelayer_lottery.core.methods import SelectTogether
from onelayer_lottery.core.modules import Frozen, MaskedWeight
from onelayer_lottery.core.selection import Selection
from onelayer_lottery.monitoring.finite import nonfinite

if FAKE_DEVICES:
    from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.insert(0, str(ROOT / "benchmarks"))

from models import batch, build_trainer
from rows import QUICK

needs_fake_devices = pytest.mark.skipif(
    not FAKE_DEVICES, reason="torch cannot fake a device"
)
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
if torch.__version__.startswith("1."):  # where |NaN| in bfloat16 may have its sign set
    DTYPES.remove(torch.bfloat16)


def masks_together(scores, keep):
    kept = [kept_count(s.numel(), keep) for s in scores]
    sizes = [s.numel() for s in scores]
    return Selection(sizes, kept, device=scores[0].device).masks(scores)


few_values = st.sampled_from([0.0, -0.0, 0.5, -0.5, 3.0, math.inf, -math.inf, math.nan])
finite = st.floats(-1e4, 1e4, width=16)
shapes = hnp.array_shapes(min_dims=2, max_dims=2, max_side=12)
tensors = hnp.arrays(np.float32, shapes, elements=finite) | hnp.arrays(
    np.float32, shapes, elements=few_values
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(tensors, min_size=1, max_size=4),
    st.floats(0.01, 1.0),
    st.sampled_from(DTYPES),
)
def test_masks_together_are_those_of_the_cpu_one_by_one(values, keep, dtype):
    scores = [torch.from_numpy(v).to(dtype) for v in values]
    scores = [s for s in scores if kept_count(s.numel(), keep)]
    if scores:
        for found, each in zip(masks_together(scores, keep), scores):
            assert torch.equal(found, top_k_mask(each, keep))


# Where the two halves of the bits are as small or as large as can be, also of NaN.
halves = st.sampled_from([0, 1, 0x7F80, 0x7FFE, 0x7FFF, 0x8000, 0xFFFF])
patterns = st.builds(lambda high, low: high << 16 | low, halves, halves)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(patterns, min_size=2, max_size=12), min_size=1, max_size=4))
def test_numbers_are_ordered_by_their_bits_whatever_these_are(values):
    scores = [torch.from_numpy(np.array(v, np.uint32).view(np.float32)) for v in values]
    for keep in (0.3, 0.6, 1.0):
        if all(kept_count(s.numel(), keep) for s in scores):
            for found, each in zip(masks_together(scores, keep), scores):
                assert torch.equal(found, top_k_mask(each, keep))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ties", [False, True])
def test_large_tensors_of_different_sizes_are_selected_exactly(dtype, ties):
    generator = torch.Generator().manual_seed(1)
    scores = [torch.randn(s, generator=generator) for s in [(96, 64)] * 9 + [(500, 64)]]
    if ties:
        scores = [(s * 2).round() / 2 for s in scores]
    scores = [s.to(dtype) for s in scores]
    for keep in (0.1, 0.5, 0.97):
        for found, each in zip(masks_together(scores, keep), scores):
            assert torch.equal(found, top_k_mask(each, keep))


@needs_fake_devices
@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_nothing_waits_for_the_device(device):
    """A tensor without values: whatever asks for one raises."""
    with FakeTensorMode():
        scores = [torch.empty(s, device=device) for s in ((96, 64), (500, 64))]
        for found, each in zip(masks_together(scores, 0.5), scores):
            assert found.shape == each.shape
            assert found.device == each.device
        mask = top_k_mask(scores[0].half(), 0.3)
        assert (mask.device.type, mask.dtype) == (device, torch.bool)
        with pytest.raises(Exception, match="_local_scalar_dense"):
            scores[0].sum().item()


@pytest.fixture
def cpu_as_accelerator(monkeypatch):
    """Let the CPU stand for a device, and count how often masks are selected there."""
    calls = []
    masks = Selection.masks

    def counted(self, scores):
        calls.append(len(scores))
        return masks(self, scores)

    monkeypatch.setattr(Selection, "masks", counted)
    for module in ("methods", "mask"):
        name = f"onelayer_lottery.core.{module}.on_accelerator"
        monkeypatch.setattr(name, lambda tensor: True)
    return calls


def test_a_training_selects_all_masks_at_once_and_learns_the_same(cpu_as_accelerator):
    def trained():
        trainer = build_trainer("ours", QUICK.size)
        for number in range(3):
            trainer.train_step([batch(64, QUICK.size, seed=number)] * 2)
        return trainer.model.state_dict()

    on_device = trained()
    masks = sum(name.endswith("scores") for name in on_device)
    assert cpu_as_accelerator == [masks - 1] * 3  # tied embeddings are stored twice
    with pytest.MonkeyPatch.context() as patch:
        for module in ("methods", "mask"):
            name = f"onelayer_lottery.core.{module}.on_accelerator"
            patch.setattr(name, lambda tensor: False)
        on_cpu = trained()
    for name, tensor in on_cpu.items():
        assert torch.equal(tensor, on_device[name]), name
    assert len(cpu_as_accelerator) == 3


@pytest.mark.parametrize("method", ["topk", "signed"])
def test_weights_that_are_selected_together_follow_the_scores(
    cpu_as_accelerator, method
):
    weights = [masked_weight(s, method=method) for s in ((6, 8), (12, 4), (6, 8))]
    together = SelectTogether()
    for update in range(3):
        together.before_update(weights)
        for weight in weights:
            weight.set_num_updates(update)
            expected = reference.effective_weight(
                weight.scores,
                weight.frozen.weight,
                keep=0.5,
                signed=method == "signed",
            )
            assert torch.equal(weight(), expected)
            weight.scores.data.add_(0.1 * torch.randn(weight.scores.shape))
    assert cpu_as_accelerator == [3] * 3


@needs_fake_devices
def test_masks_are_on_the_device_of_their_scores_wherever_the_model_goes():
    """Fake tensors of two devices at once, and of others in the next update."""
    together = SelectTogether()
    with FakeTensorMode():
        scores = torch.empty(6, 8)
        weights = [MaskedWeight(Frozen(scores), scores, keep=0.5) for _ in range(3)]
        for devices in (["cuda:0", "cuda:1", "cuda:1"], ["cuda:1", "meta", "meta"]):
            for weight, device in zip(weights, devices):
                weight.scores = torch.nn.Parameter(torch.empty(6, 8, device=device))
            together.before_update(weights)
            for weight, device in zip(weights, devices):
                assert weight.method.selected.device == torch.device(device)


def test_a_model_that_is_moved_in_a_training_gives_its_weights_there():
    weight, together = masked_weight((6, 8)), SelectTogether()
    for number, device in enumerate(("cpu", "meta")):
        weight.to(device)
        together.before_update([weight])
        weight.set_num_updates(number)
        assert weight().device.type == device
    weight().sum().backward()
    assert weight.scores.grad.device.type == "meta"


def test_a_weight_that_is_not_trained_gets_no_mask_in_advance(cpu_as_accelerator):
    """It would be used later, for other scores."""
    weight, together = masked_weight((6, 8)).eval(), SelectTogether()
    together.before_update([weight])
    weight.scores.data.neg_().add_(1)
    weight.set_num_updates(1)
    expected = reference.effective_weight(weight.scores, weight.frozen.weight, keep=0.5)
    assert torch.equal(weight(), expected)


def test_what_is_not_finite_on_a_device_is_named_without_waiting_at_each_update(
    monkeypatch,
):
    for module in ("core.methods", "core.mask", "monitoring.finite"):
        name = f"onelayer_lottery.{module}.on_accelerator"
        monkeypatch.setattr(name, lambda tensor: True)
    trainer = build_trainer("ours", QUICK.size)
    trainer.set_num_updates(97)
    scores = trainer.model.encoder.layers[0].fc1.masked.scores
    scores.data[0, 0] = math.nan
    trainer.model.set_num_updates(99)  # the mask is finite, and so is the loss
    with pytest.raises(SystemExit) as end:
        trainer.model.set_num_updates(100)
    assert str(end.value).startswith(
        "encoder.layers.0.fc1.masked.scores has a NaN or infinity at update 100: "
    )


@needs_fake_devices
def test_the_check_for_nan_reads_no_value_between_its_updates():
    with FakeTensorMode():
        model = torch.nn.Module()
        model.scores = torch.nn.Parameter(torch.empty(6, 8, device="cuda"))
        for number in range(1, 100):
            assert nonfinite(model, number) is None
        with pytest.raises(Exception, match="_local_scalar_dense"):
            nonfinite(model, 100)
