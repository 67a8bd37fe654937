"""What a ticket holds: a trained model as a seed and bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

import numpy as np

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.frozen.spec import FrozenSpec
from onelayer_lottery.ticket.configuration import Configuration, check_configuration
from onelayer_lottery.ticket.container import Refusal, require

BPE_KINDS = ("sentencepiece", "fastbpe", "subword_nmt", "gpt2")


class TicketError(LotteryError):
    """A ticket cannot be read or written."""


@dataclass
class FrozenTensor:
    """The tensor of a role: drawn again from the seed, or imported."""

    shape: Tuple[int, int]
    gain: float  # factor on the init's scale
    padding: Optional[int]  # row that is zero
    digest: str  # SHA-256 of the whole weight as fp32, padding row zeroed
    values: Optional[np.ndarray] = None  # imported: the kept values, row by row


@dataclass
class MaskedTensor:
    """The mask of a layer over the frozen tensor of its role."""

    role: str
    mask: np.ndarray  # bool, shape of the frozen tensor
    signs: Optional[np.ndarray] = None  # bool, for each kept position: flip the weight

    def factors(self) -> np.ndarray:
        """Return the factor on each frozen weight: 0, 1 or -1."""
        factors = self.mask.astype(np.int8)
        if self.signs is not None:
            factors[self.mask] -= 2 * self.signs.astype(np.int8)
        return factors


@dataclass
class Bpe:
    """The file of a subword model."""

    kind: str  # one of BPE_KINDS
    content: bytes


@dataclass(frozen=True)
class Moses:
    """Moses' tokenisation by sacremoses: punctuation normalised, tokens escaped."""

    source: str  # codes of the languages
    target: str
    dashes: bool  # split words at dashes, as in WMT


@dataclass(frozen=True)
class TextSteps:
    """What is done to raw text before it is split into subwords, in this order."""

    moses: Optional[Moses] = None
    lower: bool = False


@dataclass
class Ticket:
    """Everything needed to build the model again and to feed it text."""

    seed: int
    init: str
    fan: str
    keep: float
    stream: int  # version of the random stream of frozen weights
    frozen: Dict[str, FrozenTensor]  # by role
    masks: Dict[str, MaskedTensor]  # by layer
    tied: Dict[str, str]  # other name of a masked layer -> its name in masks
    dense: Dict[str, np.ndarray]  # float32 or float16, by tensor name
    config: Dict[str, Any]  # JSON as in the file, unchecked: see ``configuration``
    dictionaries: Dict[str, str]  # text, by side
    bpe: Optional[Bpe] = None
    text: Optional[TextSteps] = None  # None: the text is fed as it is
    # Bytes of each payload of the file that the ticket was read from, by name.
    stored: Dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    def frozen_spec(self, role: str) -> FrozenSpec:
        """Return what decides the bits of the frozen tensor of a role."""
        frozen = self.frozen[role]
        return FrozenSpec(
            seed=self.seed,
            role=role,
            shape=frozen.shape,
            init=self.init,
            keep=self.keep,
            fan=self.fan,
            gain=frozen.gain,
            padding=frozen.padding,
        )

    def configuration(self) -> Configuration:
        """Return the checked configuration; use nothing else of ``config``."""
        try:
            checked = check_configuration(self.config)
            for name in ("seed", "init", "fan", "keep"):
                stated = getattr(self, name)
                require(
                    checked.model.get(f"mask_{name}", stated) == stated,
                    f"its mask_{name} contradicts its settings",
                )
        except Refusal as refusal:
            raise TicketError(f"the ticket cannot be used: {refusal}") from None
        return checked
