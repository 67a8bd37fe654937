"""What all planted models have in common, whichever stock model they are made of."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Dict, List, Optional

import torch
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor, nn

from onelayer_lottery.compat import (
    all_arguments,
    warn_of_dropped_data,
    zero_unset_buffers,
)
from onelayer_lottery.core.malloc import tune_malloc
from onelayer_lottery.core.methods import SelectTogether
from onelayer_lottery.embeddings.into_model import (
    PendingCheckpoint,
    pending_checkpoint,
    read_start,
)
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.identity import (
    IDENTITY_KEY,
    decode_identity,
    encode_identity,
    identity_of,
)
from onelayer_lottery.monitoring.branches import (
    describe_branches,
    residual_branches,
    warning_of,
)
from onelayer_lottery.monitoring.finite import nonfinite
from onelayer_lottery.monitoring.flip_rate import FlipRate
from onelayer_lottery.monitoring.progress import Progress, word_entropy
from onelayer_lottery.planting.bake import bake_layers
from onelayer_lottery.planting.config import MaskConfig, add_mask_args
from onelayer_lottery.planting.contents import masked_weights
from onelayer_lottery.planting.plant import plant
from onelayer_lottery.planting.presets import PRESETS, Preset
from onelayer_lottery.planting.problems import problems
from onelayer_lottery.planting.roles import HEADS

logger = logging.getLogger(__name__)


_StockModel: Any = object  # the class that follows; Any to the type checker


class PlantedModel(_StockModel):
    """A mixin for stock models; list it before the stock class."""

    stock_arch: str  # stock architecture that the same flags describe
    config_class = MaskConfig
    presets: ClassVar[Dict[str, Preset]] = PRESETS
    first_update: Optional[int] = None  # in this process: a training may be resumed
    allocates_state = True  # until the first update of this process is done
    checked_update: Optional[int] = None  # the last one checked for NaN and infinity
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
        """Build the stock model and plant it; exit with a message on bad flags."""
        config = cls.config_class.from_namespace(args)
        given = all_arguments(args)
        sentences = cls.problems(config, given)
        if sentences:
            raise SystemExit("\n".join(sentences))
        warn_of_dropped_data(getattr(given, "required_batch_size_multiple", 1))
        try:
            model = super().build_model(args, task)
        except ValueError as error:
            if not str(error).startswith("--"):
                raise
            # fairseq's own message about flags that contradict each other
            raise SystemExit(str(error)) from None
        zero_unset_buffers(model)
        model.mask_config = config
        model.max_update = getattr(given, "max_update", None) or 0
        try:
            pending, start = pending_checkpoint(args), {}
            if config.mask_start:
                start = read_start(config.mask_start, model, task, pending)
            imports = cls.imports(args, task, model, config, pending)
            model.plant(model, imports=imports, start=start)
        except LotteryError as error:
            raise SystemExit(str(error)) from None
        # fairseq saves the arguments in every checkpoint; see fill_mask_defaults.
        if start:
            args.start_inside = True
        if imports:
            args.embeddings_inside = True
        # For classification heads, which a task registers later.
        model.head_start = {k: v for k, v in start.items() if k.startswith(HEADS)}
        model.flip_rate = FlipRate()
        model.select_together = SelectTogether()
        counts = task.target_dictionary.count if hasattr(model, "decoder") else ()
        model.progress = Progress(word_entropy(counts), model.max_update)
        variances = residual_branches(model)
        if variances:
            logger.info(describe_branches(variances))
            _warn(warning_of(variances))
        model.register_buffer(
            IDENTITY_KEY, torch.from_numpy(encode_identity(model.identity()))
        )
        return model

    @classmethod
    def problems(cls, config: MaskConfig, args: Any) -> List[str]:
        """Return what is wrong with the flags, one sentence each."""
        return problems(config, args)

    @classmethod
    def reservoirs(cls, args: Any) -> Optional[Dict[str, bool]]:
        """Return whether each reservoir layer has masks, by name; here there are none.

        The weights of these layers come from the seed, and are in no checkpoint.
        """
        return None

    @classmethod
    def imports(
        cls,
        args: Any,
        task: Any,
        model: Any,
        config: MaskConfig,
        pending: PendingCheckpoint,
    ) -> Dict[str, Tensor]:
        """Return matrices of imported embeddings by the name of their layer."""
        return {}

    def identity(self) -> Dict[str, str]:
        """Return the values that a checkpoint must match, by flag."""
        return identity_of(vars(self.mask_config))

    def plant(self, part: nn.Module, **options: Any) -> None:
        """Plant this model, or a part that is added later; see ``planting.plant``.

        Exit with a message on what a user can fix.
        """
        try:
            plant(part, self.mask_config, max_update=self.max_update, **options)
        except LotteryError as error:
            raise SystemExit(str(error)) from None

    def set_num_updates(self, num_updates: int) -> None:
        if self.training:
            if self.first_update is None:
                self.first_update = num_updates
                tune_malloc(long_lived=True)
            elif self.allocates_state and num_updates != self.first_update:
                self.allocates_state = False
                tune_malloc(long_lived=False)
            if num_updates != self.checked_update:
                self.select_together.before_update(w for _, w in masked_weights(self))
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
            # A criterion that does not smooth labels calls the same loss.
            loss = metrics.get_meter("train_inner", "nll_loss") or metrics.get_meter(
                "train_inner", "loss"
            )
            if loss is not None and loss.count:
                _warn(self.progress.of_loss(loss.avg, num_updates))

    def load_state_dict(
        self,
        state_dict: Dict[str, Tensor],
        strict: bool = True,
        model_cfg: Optional[Any] = None,
        args: Optional[Any] = None,
    ):
        """Load a checkpoint of this model; exit with a message on any other.

        It raises SystemExit because fairseq replaces any other exception by one that
        does not say what is wrong.
        """
        misfit = self._misfit(state_dict, strict)
        if not misfit:
            try:
                return super().load_state_dict(state_dict, strict, model_cfg, args)
            except RuntimeError:
                # Compare only now: fairseq may rename or prune layers before it loads.
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
        """Replace planted layers by stock ones; as in fairseq, training ends here."""
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
    """Return the configuration of a planted model from its arguments."""
    return ARCH_MODEL_REGISTRY[arch].config_class.from_namespace(arguments)


def _differing_tensors(theirs: Dict, ours: Dict) -> List[str]:
    def shape(tensors: Dict, name: str) -> str:
        return str(tuple(tensors[name].shape)) if name in tensors else "absent"

    return [
        f"{name} ({shape(theirs, name)} there, {shape(ours, name)} here)"
        for name in {**theirs, **ours}
        if shape(theirs, name) != shape(ours, name)
    ]
