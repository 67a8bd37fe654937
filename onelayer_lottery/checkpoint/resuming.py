"""Resume a training exactly where it stopped, which fairseq alone does not do.

fairseq has no hook between building the trainer and its first update, so its function
that loads the last checkpoint is wrapped. Trainings of other models stay as they are.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from pathlib import Path
from typing import Any, Dict, Iterator

from fairseq import checkpoint_utils
from fairseq.distributed.utils import broadcast_object

from onelayer_lottery.checkpoint.torn import LAST, mend_last

logger = logging.getLogger(__name__)


def watch_resuming() -> None:
    """Make a stopped training continue exactly, and a finished one stay as it is."""
    load = checkpoint_utils.load_checkpoint
    if hasattr(load, "__wrapped__"):
        return

    @functools.wraps(load)
    def load_checkpoint(cfg: Any, trainer: Any, **options: Any) -> Any:
        if not hasattr(getattr(trainer, "_model", None), "mask_config"):
            return load(cfg, trainer, **options)
        if cfg.restore_file == LAST:
            if trainer.is_data_parallel_master:
                mend_last(Path(cfg.save_dir))
            _wait_for_master(trainer)
        with same_batches(trainer.task), _same_place(trainer):
            loaded = load(cfg, trainer, **options)
        done, most = trainer.get_num_updates(), trainer.cfg.optimization.max_update
        if 0 < most <= done:
            # fairseq would train one more update each time.
            logger.info("the training is finished: it has %s updates", done)
            raise SystemExit(0)
        return loaded

    checkpoint_utils.load_checkpoint = load_checkpoint


def whole_updates(batches: int, *, processes: int, frequency: int) -> int:
    """Return how many of the first batches of an epoch make whole updates.

    fairseq never ends an epoch that it begins in the middle of an update.
    """
    return batches - batches % (processes * frequency)


@contextlib.contextmanager
def same_batches(task: Any) -> Iterator[None]:
    """Give a resumed training the batches that it would have had.

    fairseq fills batches by the epoch in which it builds the iterator. A training that
    is not stopped builds it in epoch 1, and only shuffles its batches in later epochs;
    one that is resumed in epoch 2 or later would get other batches. Workers that load
    data would keep the words that they masked in the epoch in which they were started.
    """
    build = task.get_batch_iterator

    def get_batch_iterator(dataset: Any, epoch: int = 1, **options: Any) -> Any:
        once = (
            not options.get("disable_iterator_cache")
            and not options.get("update_epoch_batch_itr")
            and not getattr(task.cfg, "rebuild_batches", False)
            and task.can_reuse_epoch_itr(dataset)
        )
        batches = build(dataset=dataset, epoch=1 if once else epoch, **options)
        dataset.set_epoch(epoch)
        batches.reuse_dataloader = False
        return batches

    with _replaced(task, "get_batch_iterator", get_batch_iterator):
        yield


@contextlib.contextmanager
def _same_place(trainer: Any) -> Iterator[None]:
    """Continue after the batches that are done, however many processes did them.

    A checkpoint counts the batches of one process. It is read by the first process,
    which sends it to the others.
    """
    read = checkpoint_utils.load_checkpoint_to_cpu

    def load_checkpoint_to_cpu(path: str, *arguments: Any, **options: Any) -> Any:
        state = read(path, *arguments, **options)
        _move(state, trainer)
        return state

    with _replaced(checkpoint_utils, "load_checkpoint_to_cpu", load_checkpoint_to_cpu):
        yield


def _wait_for_master(trainer: Any) -> None:
    """Wait until the first process has replaced what others may read too."""
    if trainer.data_parallel_world_size > 1 and not trainer.tpu:
        group = trainer.data_parallel_process_group
        broadcast_object(None, src_rank=0, group=group, dist_device=trainer.device)


def _move(state: Dict[str, Any], trainer: Any) -> None:
    place = state["extra_state"]["train_iterator"]
    now = trainer.data_parallel_world_size
    run = (state.get("cfg") or {}).get("distributed_training") or {}
    before = run.get("distributed_world_size", now)
    frequencies = trainer.cfg.optimization.update_freq
    frequency = frequencies[min(place["epoch"], len(frequencies)) - 1]
    done = before * place.get("iterations_in_epoch", 0)
    whole = whole_updates(done, processes=now, frequency=frequency)
    place["iterations_in_epoch"] = whole // now
    if before != now or whole < done:
        logger.info(
            "continuing after %s batches of epoch %s, on %s processes instead of %s%s",
            whole,
            place["epoch"],
            now,
            before,
            f"; {done - whole} batches are trained on again" if whole < done else "",
        )


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
