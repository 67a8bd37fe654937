"""Resuming a training: what fairseq does before its first update, and should not.

fairseq has no hook between building the trainer and its first update, so its function
that loads the last checkpoint is wrapped. Trainings of other models stay as they are.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils

from onelayer_lottery.torn import LAST, mend_last

logger = logging.getLogger(__name__)


def watch_resuming() -> None:
    """Mend a torn last checkpoint before it is read, and let finished trainings be."""
    load = checkpoint_utils.load_checkpoint
    if hasattr(load, "__wrapped__"):
        return

    @functools.wraps(load)
    def load_checkpoint(cfg: Any, trainer: Any, **options: Any) -> Any:
        if not hasattr(getattr(trainer, "_model", None), "mask_config"):
            return load(cfg, trainer, **options)
        if cfg.restore_file == LAST and trainer.is_data_parallel_master:
            mend_last(Path(cfg.save_dir))
        loaded = load(cfg, trainer, **options)
        done, most = trainer.get_num_updates(), trainer.cfg.optimization.max_update
        if 0 < most <= done:
            # fairseq would train one update more, each time that it is called.
            logger.info("the training is finished: it has %s updates", done)
            raise SystemExit(0)
        return loaded

    checkpoint_utils.load_checkpoint = load_checkpoint
