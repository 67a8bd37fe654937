"""Dense Transformers trained with few bits per weight: the rivals of signed masks.

``--arch transformer_low_bits --weight-bits BITS`` is the stock Transformer, but every
matrix is rounded as ``quantise.py`` rounds it, in training too. Backward treats the
rounding as the identity (straight-through), so that the exact matrix is trained. With
2 bits, weights are ternary: -1, 0 or 1 times a scale for each row.

Signed masks over signed constants (``--mask-method signed``) are ternary weights too:
their frozen signs carry no information. What differs is the scale, the number of zeros,
which is fixed there, and that scores are trained and not weights.
"""

import sys
from pathlib import Path

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from torch import Tensor, nn
from torch.nn.utils import parametrize

import onelayer_lottery.plugin  # noqa: F401  checkpoints load with torch 2.6 and later

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from quantise import rounded


class Rounded(nn.Module):
    """W, rounded; the gradient passes unchanged."""

    def __init__(self, bits: int):
        super().__init__()
        self.bits = bits

    def forward(self, weight: Tensor) -> Tensor:
        with torch.no_grad():
            change = rounded(weight, self.bits, 0)[0] - weight
        return weight + change


@register_model("transformer_low_bits")
class LowBitsTransformer(TransformerModel):
    @classmethod
    def add_args(cls, parser) -> None:
        super().add_args(parser)
        help_text = "bits of a weight; 2: three values"
        parser.add_argument("--weight-bits", type=int, required=True, help=help_text)

    @classmethod
    def build_model(cls, args, task):
        model = super().build_model(args, task)
        for layer in _layers(model):
            rounding = Rounded(args.weight_bits)
            parametrize.register_parametrization(layer, "weight", rounding)
        return model

    def upgrade_state_dict_named(self, state_dict, name) -> None:
        """Accept the checkpoint of a stock Transformer to start from."""
        super().upgrade_state_dict_named(state_dict, name)
        for module, layer in self.named_modules():
            stock = f"{module}.weight"
            if parametrize.is_parametrized(layer) and stock in state_dict:
                original = f"{module}.parametrizations.weight.original"
                state_dict[original] = state_dict.pop(stock)

    def make_generation_fast_(self, **options) -> None:
        """Round once for all tokens."""
        super().make_generation_fast_(**options)
        for layer in _layers(self):
            if parametrize.is_parametrized(layer):
                parametrize.remove_parametrizations(layer, "weight")


def _layers(model: nn.Module) -> list:
    return [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Embedding))]


@register_model_architecture("transformer_low_bits", "transformer_low_bits")
def low_bits(args) -> None:
    base_architecture(args)
