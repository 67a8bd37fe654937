"""Masks in half precision, in fairseq's own trainer and optimizers, on the CPU.

Masks are selected as on an accelerator. What fairseq asks of CUDA is answered for it.
"""

import sys

import pytest
import torch
from conftest import ROOT

import onelayer_lottery.plugin  # noqa: F401  changes how fairseq takes norms
from onelayer_lottery import compat, kept_count, top_k_mask
from onelayer_lottery.planting.contents import masked_weights

sys.path.insert(0, str(ROOT / "benchmarks"))

from models import batch, configuration, trainer_of
from rows import QUICK

pytestmark = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="torch has no fp16 on a CPU"
)
SIZE = QUICK.size
# How fairseq-train is told, and the type of the frozen weights.
WAYS = {
    "fp16, flat": (torch.float16, "--fp16"),
    "fp16": (torch.float16, "--fp16", "--fp16-no-flatten-grads"),
    "memory-efficient fp16": (torch.float16, "--fp16", "--memory-efficient-fp16"),
    "bf16": (torch.bfloat16, "--bf16"),
    "memory-efficient bf16": (torch.bfloat16, "--bf16", "--memory-efficient-bf16"),
    "amp": (torch.float32, "--amp"),
}


@pytest.fixture(autouse=True)
def cpu_for_cuda(monkeypatch):
    for module in ("methods", "mask"):
        name = f"onelayer_lottery.core.{module}.on_accelerator"
        monkeypatch.setattr(name, lambda tensor: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    amp, scaler = torch.autocast, torch.amp.GradScaler
    monkeypatch.setattr(
        torch.cuda.amp,
        "autocast",
        lambda enabled: amp("cpu", dtype=torch.float16, enabled=enabled),
    )
    monkeypatch.setattr(
        torch.cuda.amp, "GradScaler", lambda **options: scaler("cpu", **options)
    )


def new_trainer(way, *flags):
    config = configuration("ours", SIZE, ["--cpu", *WAYS[way][1:], *flags])
    config.common.tpu = False  # fairseq takes bf16 for a TPU
    return trainer_of(config, "ours", SIZE)


def train(trainer, until):
    while trainer.get_num_updates() < until:
        number = trainer.get_num_updates()
        trainer.train_step([batch(64, SIZE, seed=number)])


def masked_of(trainer):
    return [weight for _, weight in masked_weights(trainer.model)]


def copies(trainer):
    """The numbers that the optimizer updates, by the parameter of the model."""
    optimizer = trainer.optimizer
    ours = list(filter(lambda p: p.requires_grad, trainer.model.parameters()))
    theirs = getattr(optimizer, "fp32_params", ours)
    if isinstance(theirs, dict):
        (flat,) = theirs.values()
        theirs = flat.split([p.numel() for p in ours])
    return {id(p): c.view(p.shape) for p, c in zip(ours, theirs)}


@pytest.mark.parametrize("way", WAYS)
def test_masks_are_those_of_the_fp32_scores_that_the_optimizer_updates(way):
    flags = ("--mask-train", "norm,bias", "--mask-scale", "row")
    trainer = new_trainer(way, *flags)
    weights = masked_of(trainer)
    first = [weight.scores.detach().clone() for weight in weights]
    frozen = [weight.frozen.weight.clone() for weight in weights]
    train(trainer, 50)
    trainer.model.set_num_updates(50)  # as before the next batch
    updated = copies(trainer)
    for weight, scores, values in zip(weights, first, frozen):
        assert weight.frozen.weight.dtype == WAYS[way][0]
        assert torch.equal(weight.frozen.weight, values)
        exact = updated[id(weight.scores)]
        assert exact.dtype == torch.float32
        assert not torch.equal(exact, scores)
        product = weight._current().values
        assert torch.equal(product, values * top_k_mask(exact, 0.5))
        assert int(weight.mask().sum()) == kept_count(values.numel(), 0.5)


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_training_has_the_same_bits(way, tmp_path):
    through = new_trainer(way)
    train(through, 6)
    stopped = new_trainer(way)
    train(stopped, 3)
    path = str(tmp_path / "checkpoint.pt")
    stopped.consolidate_optimizer()  # fairseq does so before it saves
    stopped.save_checkpoint(path, {"train_iterator": {"epoch": 1}})
    resumed = new_trainer(way)
    resumed.load_checkpoint(path)
    assert resumed.get_num_updates() == 3
    train(resumed, 6)
    theirs = through.model.state_dict()
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("way", [way for way in WAYS if "bf16" not in way])
def test_an_overflow_is_skipped_and_changes_no_mask(way):
    trainer = new_trainer(way, "--fp16-init-scale", str(2**30))
    weights = masked_of(trainer)
    skipped = 0
    while trainer.get_num_updates() < 2:
        number = trainer.get_num_updates()
        trainer.model.set_num_updates(number)
        before = [weight._current().values.clone() for weight in weights]
        trainer.train_step([batch(64, SIZE, seed=number)])
        if trainer.get_num_updates() == number:
            skipped += 1
            trainer.model.set_num_updates(number + 1)  # so that masks are taken anew
            for weight, product in zip(weights, before):
                assert torch.equal(weight._current().values, product)
    assert 1 < skipped < 40


def test_apex_takes_the_norm_of_gradients_of_one_type_at_a_time(monkeypatch):
    """In its place fairseq's norms on a CPU, which count their types."""
    types = []
    whole = compat.utils.multi_tensor_total_norm.__wrapped__

    def norm_of(grads):
        types.append({grad.dtype for grad in grads})
        return whole(grads)

    monkeypatch.setattr(compat.utils, "multi_tensor_total_norm", norm_of)
    compat.take_norms_by_type()
    monkeypatch.setattr(compat.utils, "multi_tensor_l2norm_available", True)
    parameters = [torch.nn.Parameter(torch.ones(2, 2)) for _ in range(4)]
    for number, parameter in enumerate(parameters):
        parameter.data = parameter.data.to((torch.float32, torch.float16)[number % 2])
        parameter.grad = parameter.data.clone()
    assert compat.utils.clip_grad_norm_(parameters, 0) == pytest.approx(4)
    assert types == [{torch.float32}, {torch.float16}]
