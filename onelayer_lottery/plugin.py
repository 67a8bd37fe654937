"""Register the models and the criterion with fairseq, and work around its bugs."""

from onelayer_lottery.checkpoint.resuming import watch_resuming
from onelayer_lottery.compat import (
    allow_broadcast,
    restore_numpy_compat,
    take_norms_by_type,
)
from onelayer_lottery.criterions import distillation as _distillation  # noqa: F401
from onelayer_lottery.models import transformer as _models  # noqa: F401

restore_numpy_compat()
allow_broadcast()
take_norms_by_type()
watch_resuming()
