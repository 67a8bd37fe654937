"""What every masked fairseq model does, whatever stock model it is planted in."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
from fairseq.logging import metrics
from torch import Tensor, nn

from onelayer_lottery.compat import all_arguments, warn_of_dropped_data
from onelayer_lottery.config import MaskConfig, add_mask_args, problems
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.flips import FlipRate
from onelayer_lottery.importing import read_start
from onelayer_lottery.planting import HEADS, plant

# The identity of a model travels in its state dict as the codes of its text. fairseq's
# EMA leaves keys with "version" in them alone; half() leaves integers alone.
IDENTITY_KEY = "mask_version"


class PlantedModel:
    """Mixed into a stock model class, before it in the list of bases."""

    stock_arch: str  # the stock architecture whose flags give the same model, unmasked

    @classmethod
    def add_args(cls, parser) -> None:
        super().add_args(parser)
        add_mask_args(parser)

    @classmethod
    def build_model(cls, args: Any, task: Any):
        """Build the stock model, then plant it; end with a sentence on bad flags."""
        config = MaskConfig.from_namespace(args)
        given = all_arguments(args)
        found = problems(config, given)
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
        model.register_buffer(IDENTITY_KEY, encode_identity(config))
        return model

    @classmethod
    def imports(cls, args: Any, task: Any, model: Any, config: MaskConfig):
        """Matrices of imported embeddings by the name of their layer; here none."""
        return {}

    def plant(self, part: nn.Module, **options: Any) -> None:
        """Plant this model, or a part of it that comes later; see ``planting.plant``.

        What a user can mend ends with a sentence.
        """
        try:
            plant(part, self.mask_config, max_update=self.max_update, **options)
        except LotteryError as error:
            raise SystemExit(str(error)) from None

    def set_num_updates(self, num_updates: int) -> None:
        super().set_num_updates(num_updates)
        rate = self.flip_rate.after(self, num_updates) if self.training else None
        if rate is not None:
            metrics.log_scalar("flip_rate", rate, round=6)

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

    def _misfit(self, state_dict: Dict[str, Tensor], strict: bool) -> Optional[str]:
        if IDENTITY_KEY not in state_dict:
            if not strict:
                return None
            return (
                "it has no masks; it is of a dense model, whose layers one shared"
                " frozen layer cannot hold. Give a checkpoint of a masked model, or"
                " none to start from random masks"
            )
        theirs, ours = _decode(state_dict[IDENTITY_KEY]), self.mask_config.identity()
        if theirs != ours:
            differing = [flag for flag in ours if theirs.get(flag) != ours[flag]]
            return (
                "it was trained with "
                + " ".join(f"{flag} {theirs.get(flag)}" for flag in differing)
                + ", this model has "
                + " ".join(f"{flag} {ours[flag]}" for flag in differing)
                + "; give the same flags, or start a new --save-dir"
            )
        return None


def _differing_tensors(theirs: Dict, ours: Dict) -> List[str]:
    def shape(tensors: Dict, name: str) -> str:
        return str(tuple(tensors[name].shape)) if name in tensors else "absent"

    return [
        f"{name} ({shape(theirs, name)} there, {shape(ours, name)} here)"
        for name in {**theirs, **ours}
        if shape(theirs, name) != shape(ours, name)
    ]


def encode_identity(config: MaskConfig) -> Tensor:
    """The identity of a model as a tensor for its state dict."""
    text = "|".join(f"{flag} {value}" for flag, value in config.identity().items())
    return torch.tensor(list(text.encode()), dtype=torch.int64)


def _decode(codes: Tensor) -> Dict[str, str]:
    parts = bytes(codes.tolist()).decode().split("|")
    return dict(part.split(" ", 1) for part in parts)
