"""What every masked fairseq model does, whatever stock model it is planted in."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Dict, FrozenSet, List, Optional

import torch
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor, nn

from onelayer_lottery.branches import describe_branches, residual_branches, warning_of
from onelayer_lottery.compat import (
    all_arguments,
    place_memory,
    warn_of_dropped_data,
)
from onelayer_lottery.config import (
    PRESETS,
    MaskConfig,
    Preset,
    add_mask_args,
    problems,
)
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.finite import nonfinite
from onelayer_lottery.flips import FlipRate
from onelayer_lottery.importing import read_start
from onelayer_lottery.planting import bake_layers, plant
from onelayer_lottery.progress import Progress, word_entropy
from onelayer_lottery.roles import HEADS

logger = logging.getLogger(__name__)

# The identity of a model travels in its state dict as the codes of its text. fairseq's
# EMA leaves keys with "version" in them alone; half() leaves integers alone.
IDENTITY_KEY = "mask_version"
_LONGEST_IDENTITY = 1 << 16


class PlantedModel:
    """Mixed into a stock model class, before it in the list of bases."""

    stock_arch: str  # the stock architecture whose flags give the same model, unmasked
    config_class = MaskConfig
    presets: ClassVar[Dict[str, Preset]] = PRESETS
    first_update: Optional[int] = None  # of this process: a training may be resumed
    checked_update: Optional[int] = None  # the last whose result was found finite
    misfit_of_stock = (
        "it has no masks; it is of a dense model, whose layers one shared frozen layer"
        " cannot hold. Give a checkpoint of a masked model, or none to start from"
        " random masks"
    )

    @classmethod
    def add_args(cls, parser) -> None:
        super().add_args(parser)
        add_mask_args(parser, cls.config_class)

    @classmethod
    def build_model(cls, args: Any, task: Any):
        """Build the stock model, then plant it; end with a sentence on bad flags."""
        config = cls.config_class.from_namespace(args)
        given = all_arguments(args)
        found = cls.problems(config, given)
        if found:
            raise SystemExit("\n".join(found))
        warn_of_dropped_data(getattr(given, "required_batch_size_multiple", 1))
        try:
            model = super().build_model(args, task)
        except ValueError as error:
            if str(error).startswith("--"):  # fairseq's own word on contradictory flags
                raise SystemExit(str(error)) from None
            raise
        model.mask_config = config
        model.max_update = getattr(given, "max_update", None) or 0
        try:
            start = (
                read_start(config.mask_start, model, task, args)
                if config.mask_start
                else {}
            )
            imports = cls.imports(args, task, model, config)
            model.plant(model, imports=imports, start=start)
        except LotteryError as error:
            raise SystemExit(str(error)) from None
        # For heads, which a task registers later.
        model.head_start = {k: v for k, v in start.items() if k.startswith(HEADS)}
        model.flip_rate = FlipRate()
        counts = task.target_dictionary.count if hasattr(model, "decoder") else ()
        model.progress = Progress(word_entropy(counts), model.max_update)
        variances = residual_branches(model)
        if variances:
            logger.info(describe_branches(variances))
            _warn(warning_of(variances))
        model.register_buffer(IDENTITY_KEY, encode_identity(model.identity()))
        return model

    @classmethod
    def problems(cls, config: MaskConfig, args: Any) -> List[str]:
        """All that is wrong with the flags, one sentence each."""
        return problems(config, args)

    @classmethod
    def drawn_layers(cls, args: Any) -> FrozenSet[str]:
        """Names of layers whose weights come from the seed alone; here none."""
        return frozenset()

    @classmethod
    def imports(cls, args: Any, task: Any, model: Any, config: MaskConfig):
        """Matrices of imported embeddings by the name of their layer; here none."""
        return {}

    def identity(self) -> Dict[str, str]:
        """What a checkpoint must agree in."""
        return self.mask_config.identity()

    def plant(self, part: nn.Module, **options: Any) -> None:
        """Plant this model, or a part of it that comes later; see ``planting.plant``.

        What a user can mend ends with a sentence.
        """
        try:
            plant(part, self.mask_config, max_update=self.max_update, **options)
        except LotteryError as error:
            raise SystemExit(str(error)) from None

    def set_num_updates(self, num_updates: int) -> None:
        if self.training:
            if self.first_update is None or num_updates < self.first_update:
                self.first_update = num_updates
            place_memory(lasting=num_updates == self.first_update)
        super().set_num_updates(num_updates)
        if self.training and num_updates != self.checked_update:
            self.checked_update = num_updates
            problem = nonfinite(self, num_updates)
            if problem:
                raise SystemExit(problem)
        rate = self.flip_rate.after(self, num_updates) if self.training else None
        if rate is not None:
            metrics.log_scalar("flip_rate", rate, round=6)
            _warn(self.progress.of_flips(rate, num_updates))
        if self.training and self.progress.is_due(num_updates):
            loss = metrics.get_meter("train_inner", "nll_loss")
            if loss is not None and loss.count:
                _warn(self.progress.of_loss(loss.avg, num_updates))

    def load_state_dict(
        self,
        state_dict: Dict[str, Tensor],
        strict: bool = True,
        model_cfg: Optional[Any] = None,
        args: Optional[Any] = None,
    ):
        """Load a checkpoint of this very model; end with a sentence on any other.

        SystemExit rather than an exception: fairseq replaces any exception here by one
        that does not say what is wrong.
        """
        misfit = self._misfit(state_dict, strict)
        if not misfit:
            try:
                return super().load_state_dict(state_dict, strict, model_cfg, args)
            except RuntimeError:
                # Only now: before, fairseq may have renamed or pruned layers.
                differing = _differing_tensors(state_dict, self.state_dict())
                if not differing:
                    raise
                misfit = (
                    f"{len(differing)} tensors differ from this model's, first"
                    f" {differing[0]}; give the --arch, dictionaries and flags that it"
                    " was trained with"
                )
        raise SystemExit(f"cannot load the checkpoint: {misfit}")

    def prepare_for_inference_(self, cfg: Any) -> None:
        warn_of_dropped_data(cfg.dataset.required_batch_size_multiple)
        super().prepare_for_inference_(cfg)

    def make_generation_fast_(self, **options: Any) -> None:
        """As in fairseq, it can only generate from now on."""
        super().make_generation_fast_(**options)
        bake_layers(self)

    def _misfit(self, state_dict: Dict[str, Tensor], strict: bool) -> Optional[str]:
        if IDENTITY_KEY not in state_dict:
            if not strict:
                return None
            return self.misfit_of_stock
        try:
            theirs, ours = decode_identity(state_dict[IDENTITY_KEY]), self.identity()
        except LotteryError as error:
            return str(error)
        if theirs != ours:
            differing = [
                flag
                for flag in {**ours, **theirs}
                if theirs.get(flag) != ours.get(flag)
            ]
            return (
                "it was trained with "
                + " ".join(f"{flag} {theirs.get(flag)}" for flag in differing)
                + ", this model has "
                + " ".join(f"{flag} {ours.get(flag)}" for flag in differing)
                + "; give the same flags, or start a new --save-dir"
            )
        return None


def _warn(sentence: Optional[str]) -> None:
    if sentence:
        logger.warning(sentence)


def config_of(arch: str, arguments: Any) -> MaskConfig:
    """The flags of a planted model, in the form that its architecture has them."""
    return ARCH_MODEL_REGISTRY[arch].config_class.from_namespace(arguments)


def _differing_tensors(theirs: Dict, ours: Dict) -> List[str]:
    def shape(tensors: Dict, name: str) -> str:
        return str(tuple(tensors[name].shape)) if name in tensors else "absent"

    return [
        f"{name} ({shape(theirs, name)} there, {shape(ours, name)} here)"
        for name in {**theirs, **ours}
        if shape(theirs, name) != shape(ours, name)
    ]


def encode_identity(identity: Dict[str, str]) -> Tensor:
    """The identity of a model as a tensor for its state dict."""
    text = "|".join(f"{flag} {value}" for flag, value in identity.items())
    return torch.tensor(list(text.encode()), dtype=torch.int64)


def decode_identity(codes: Tensor) -> Dict[str, str]:
    """The identity in a state dict."""
    try:
        parts = bytes(codes.flatten()[:_LONGEST_IDENTITY].tolist()).decode().split("|")
        return dict(part.split(" ", 1) for part in parts)
    except (TypeError, ValueError):
        raise LotteryError(f"its {IDENTITY_KEY} is damaged") from None
