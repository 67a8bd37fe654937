"""Check all flags of a grid with fairseq's parsers before anything starts."""

from __future__ import annotations

import contextlib
import difflib
import io
from pathlib import Path
from typing import Any, Callable, List, Optional

from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY

import onelayer_lottery.plugin  # noqa: F401  grids name what it registers
from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.experiments.sweep.grid import Grid
from onelayer_lottery.experiments.sweep.runs import Flags, Run, words_of
from onelayer_lottery.models.planted import PlantedModel, config_of

PACKAGE = Path(__file__).resolve().parents[2]

# Flags that say which symbols a language model is given together.
_TEXT_FLAGS = (
    *("task", "tokens-per-sample", "sample-break-mode", "max-target-positions"),
    *("add-bos-token", "shorten-method"),
)

_LONGEST = 500  # characters of what fairseq says of a flag


def is_masked(arch: str) -> bool:
    """Whether an architecture has frozen weights that --mask-seed decides."""
    model = ARCH_MODEL_REGISTRY.get(arch)
    return model is not None and issubclass(model, PlantedModel)


def is_language_model(train: Flags) -> bool:
    """Whether a run is scored by fairseq-eval-lm instead of fairseq-generate."""
    return train.get("task") == "language_modeling"


def scoring_flags(run: Run, grid: Grid) -> Flags:
    """Return the flags with which a trained model is scored, without its path."""
    flags: Flags = {"required-batch-size-multiple": "1"}
    if is_language_model(run.train):
        # fairseq-eval-lm does not take them from the checkpoint.
        flags.update({k: v for k, v in run.train.items() if k in _TEXT_FLAGS})
        test = any(grid.data.glob("test.*"))
        flags["gen-subset"] = "test" if test else "valid"
    return {**flags, **(run.generate or {})}


def check_flags(grid: Grid) -> None:
    """Raise an error that lists everything that fairseq or the masks would refuse."""
    refused: List[str] = []
    seen = set()
    for run in grid.runs:
        checked = (tuple(run.train.items()), tuple((run.generate or {}).items()))
        if checked in seen:
            continue
        seen.add(checked)
        problem = _train_problem(run.train, grid) or (
            run.generate is not None and _scoring_problem(run, grid)
        )
        if problem:
            refused.append(f"variant {run.variant}: {problem}")
    if refused:
        lines = "\n  ".join(dict.fromkeys(refused))
        raise LotteryError(f"{grid.name}: fairseq would refuse\n  {lines}")


def _train_problem(flags: Flags, grid: Grid) -> Optional[str]:
    arch = str(flags["arch"])
    if arch not in ARCH_MODEL_REGISTRY:
        near = difflib.get_close_matches(arch, ARCH_MODEL_REGISTRY, 3, 0.5)
        return f"arch {quote(arch)} is not known" + (
            f"; did you mean {' or '.join(near)}?" if near else ""
        )
    parsed = _parse(options.get_training_parser, flags, grid)
    if isinstance(parsed, str):
        return parsed
    if is_masked(arch):
        model = ARCH_MODEL_REGISTRY[arch]
        return "; ".join(model.problems(config_of(arch, parsed), parsed)) or None
    return None


def _scoring_problem(run: Run, grid: Grid) -> Optional[str]:
    parser = options.get_generation_parser
    if is_language_model(run.train):
        parser = options.get_eval_lm_parser
    parsed = _parse(parser, {"path": "x", **scoring_flags(run, grid)}, grid)
    return f"generate: {parsed}" if isinstance(parsed, str) else None


def _parse(parser_of: Callable[[], Any], flags: Flags, grid: Grid) -> Any:
    """Return the parsed arguments, or the message of fairseq's parser."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(
            io.StringIO()
        ):
            return options.parse_args_and_arch(
                parser_of(), [str(grid.data), *words_of(flags)]
            )
    except SystemExit:
        message = said.getvalue().strip().rpartition("error: ")[2] or "its flags"
        return message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
    except Exception as error:  # fairseq evaluates some values as Python
        return f"its flags ({str(error) or type(error).__name__})"
