"""fairseq's ways to share a training between processes, with two of gloo."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from conftest import ROOT
from fairseq.models import distributed_fairseq_model
from forks import forks

from onelayer_lottery.planting.contents import masked_weights

sys.path.insert(0, str(ROOT / "benchmarks"))

from models import batch, configuration, trainer_of
from rows import QUICK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIZE = QUICK.size
UPDATES = 50
WAYS = list(
    itertools.product(
        ("c10d", "legacy_ddp", "no_c10d"),
        ("", "--checkpoint-activations"),
    )
)


def new_trainer(*flags):
    words = ["--cpu", *flags, "--mask-train", "norm,bias"]
    config = configuration("ours", SIZE, words)
    config.model.dropout = 0.0
    config.optimization.clip_norm = 0.0
    return trainer_of(config, "ours", SIZE)


def batches(update, rank):
    """Two for each process: of different sentences, and of different length."""
    return [
        batch(64 * (1 + n + rank), SIZE, seed=4 * update + 2 * rank + n) for n in (0, 1)
    ]


def gradients(trainer):
    return {
        name.replace("module.", ""): parameter.grad.clone()
        for name, parameter in trainer.model.named_parameters()
    }


def train_one_of_two(rank, folder):
    def on_cpu(module, device_ids, output_device, **options):
        return torch.nn.parallel.DistributedDataParallel(module, **options)

    # It is given the number of a GPU.
    distributed_fairseq_model.DistributedDataParallel = on_cpu
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    found = {}
    for backend, checkpointing in WAYS:
        trainer = new_trainer(
            *("--ddp-backend", backend, "--distributed-world-size", "2"),
            *("--update-freq", "2", *checkpointing.split()),
        )
        trainer.train_step(batches(0, rank))
        first = gradients(trainer)
        for update in range(1, UPDATES):
            trainer.train_step(batches(update, rank))
        assert trainer.get_num_updates() == UPDATES
        model = trainer.get_model()
        masks = {name: weight.mask() for name, weight in masked_weights(model)}
        found[backend, checkpointing] = type(trainer.model).__name__, first, masks
    torch.save(found, folder / f"rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes found, by the way of sharing."""
    folder = tmp_path_factory.mktemp("ranks")
    context = forks()
    processes = [
        context.Process(target=train_one_of_two, args=(rank, folder))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(500)
        assert process.exitcode == 0
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def alone():
    """The gradients of one process that gets all batches of an update."""
    trainer = new_trainer("--update-freq", "4")
    first = {
        name: weight.mask().clone() for name, weight in masked_weights(trainer.model)
    }
    trainer.train_step([*batches(0, 0), *batches(0, 1)])
    return first, gradients(trainer)


@pytest.mark.parametrize(("backend", "checkpointing"), WAYS)
def test_each_gradient_is_averaged_once(backend, checkpointing, ranks, alone):
    """Also that of tied embeddings, whose scores are one parameter with two uses."""
    _, expected = alone
    for found in ranks:
        wrapped, first, _ = found[backend, checkpointing]
        assert wrapped == "ModuleProxyWrapper"
        assert "decoder.embed_tokens.masked.scores" in first
        assert first.keys() == expected.keys()  # none is unused
        for name, gradient in first.items():
            assert gradient.abs().max() > 0, name
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("backend", "checkpointing"), WAYS)
def test_masks_are_equal_on_both_processes(backend, checkpointing, ranks, alone):
    before, _ = alone
    ours, theirs = (found[backend, checkpointing][2] for found in ranks)
    assert ours.keys() == theirs.keys() == before.keys()
    for name, mask in ours.items():
        assert torch.equal(mask, theirs[name]), name
        assert not torch.equal(mask, before[name]), name
