"""RoBERTa's language model head with a masked weight, which may be tied."""

from __future__ import annotations

from fairseq.models.roberta import RobertaLMHead
from torch import Tensor, nn

from onelayer_lottery.core.modules import MaskedWeight


class MaskedLMHead(RobertaLMHead):
    """y = norm(gelu(dense(x))) (W * M)^T + b, M = top-k(|S|).

    fairseq's head holds its weight directly, not in a linear layer; it is usually that
    of the embedding.
    """

    def __init__(self, masked: MaskedWeight, head: RobertaLMHead):
        nn.Module.__init__(self)  # the parts of ``head`` are used
        self.masked = masked
        self.dense, self.layer_norm = head.dense, head.layer_norm
        self.activation_fn = head.activation_fn
        if isinstance(head.bias, nn.Parameter):
            self.bias = head.bias
        else:
            self.register_buffer("bias", head.bias, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The effective matrix (symbols, dimension)."""
        return self.masked()
