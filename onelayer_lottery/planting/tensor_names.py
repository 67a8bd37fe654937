"""The names of the tensors of a masked layer in a state dict, after the layer's."""

from onelayer_lottery.core.modules import IMPORTED

MASKED = ".masked."  # all of them begin so
SCORES = f"{MASKED}scores"
SCALES = f"{MASKED}scales."  # and a number
FROZEN = f"{MASKED}frozen.{IMPORTED}"  # imported embeddings; random ones are not stored
