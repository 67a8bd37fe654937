"""The batches of a resumed training are those that it would have had."""

from argparse import Namespace

import numpy as np
import pytest
from fairseq.data import FairseqDataset
from fairseq.tasks import FairseqTask

from onelayer_lottery.checkpoint.resuming import same_batches, whole_updates
from onelayer_lottery.compat import fairseq_version


class Sentences(FairseqDataset):
    """Each is its number and the epoch, by which words would be masked in it."""

    can_reuse_epoch_itr_across_epochs = True
    epoch = 0

    def __len__(self):
        return 20

    def __getitem__(self, number):
        return number, self.epoch

    def collater(self, samples):
        return samples

    def num_tokens(self, number):
        return 1

    def num_tokens_vec(self, numbers):
        return np.ones(len(numbers), np.int64)

    def ordered_indices(self):
        return np.random.permutation(len(self))

    def set_epoch(self, epoch):
        self.epoch = epoch


def batches(*, epoch, workers, **options):
    task = FairseqTask(Namespace())
    with same_batches(task):
        return task.get_batch_iterator(
            dataset=Sentences(),
            max_sentences=3,
            epoch=epoch,
            num_workers=workers,
            data_buffer_size=2,
            **options,
        )


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("curriculum", [0, 2])
def test_a_training_that_is_resumed_in_epoch_3_gets_the_same_batches(
    workers, curriculum
):
    through = batches(epoch=1, workers=workers)
    epochs = {
        epoch: list(through.next_epoch_itr(shuffle=epoch > curriculum))
        for epoch in range(1, 5)
    }
    assert {sample[1] for batch in epochs[4] for sample in batch} == {4}
    assert epochs[3] != epochs[4]
    resumed = batches(epoch=3, workers=workers)
    place = {"version": 2, "epoch": 3, "iterations_in_epoch": 5, "shuffle": True}
    resumed.load_state_dict(place)
    assert list(resumed.next_epoch_itr()) == epochs[3][5:]
    assert list(resumed.next_epoch_itr()) == epochs[4]


@pytest.mark.skipif(
    fairseq_version() == "0.12.2", reason="fairseq 0.12.2 fills all epochs alike"
)
def test_batches_that_are_filled_anew_in_each_epoch_stay_so():
    anew = {"update_epoch_batch_itr": True, "workers": 0}
    first, third = (batches(epoch=epoch, **anew).frozen_batches for epoch in (1, 3))
    assert sorted(map(sorted, first)) != sorted(map(sorted, third))


@pytest.mark.parametrize(
    ("done", "processes", "frequency", "whole"),
    [(6, 1, 1, 6), (6, 2, 1, 6), (5, 2, 1, 4), (6, 2, 2, 4), (3, 1, 4, 0)],
)
def test_a_training_goes_on_at_the_last_whole_update(done, processes, frequency, whole):
    """With other processes too: some batches are trained on again, none is left out."""
    assert whole_updates(done, processes=processes, frequency=frequency) == whole
