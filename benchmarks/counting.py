"""Count the kernels, bytes and memory of torch operations, also on fake tensors."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterator, List, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Cost(NamedTuple):
    kernels: int  # operations that compute; one kernel each, or a few
    moved: int  # bytes that they read and write
    peak: int  # bytes of temporary memory and of the result at one moment
    scores: int  # bytes of what was given


def counted(run: Callable[[List[Tensor]], Any], scores: List[Tensor]) -> Cost:
    """The cost of ``run(scores)``."""
    with _Counter() as counter:
        result = run(scores)
    del result
    given = sum(map(_bytes, scores))
    return Cost(counter.kernels, counter.moved, counter.peak, given)


_SECTOR = 32

# They touch only the rows that are looked up.
_LOOKUPS = ("aten::index_select", "aten::gather", "aten::index_copy_")


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.moved = self.peak = self._live = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = list(_tensors((args, kwargs)))
        known = {_storage(t) for t in inputs}
        result = func(*args, **kwargs)
        outputs = list(_tensors(result))
        for tensor in outputs:
            if _storage(tensor) not in known:
                self._hold(tensor)
        schema = func._schema
        is_view = any(
            a.alias_info is not None and not a.alias_info.is_write
            for a in schema.arguments
        )
        if is_view or "empty" in schema.name or not outputs:
            return result
        self.kernels += 1
        written = list(_tensors(kwargs.get("out")))
        read = [t for t in inputs if not any(t is w for w in written)]
        if schema.name in _LOOKUPS:
            source = args[-1] if schema.name.endswith("_") else outputs[0]
            self.moved += 2 * _bytes(source)
        else:
            self.moved += sum(map(_bytes, [*read, *outputs]))
        return result

    def _hold(self, tensor: Tensor) -> None:
        size = tensor.untyped_storage().nbytes()
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(tensor.untyped_storage(), self._free, size)

    def _free(self, size: int) -> None:
        self._live -= size


def _tensors(values: Any) -> Iterator[Tensor]:
    return (v for v in tree_flatten(values)[0] if isinstance(v, Tensor))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensor: Tensor) -> int:
    """What a pass over a tensor moves: what lies between its values too.

    Memory moves in sectors of 32 bytes. Repeated values of an expanded tensor are read
    once.
    """
    if not tensor.numel():
        return 0
    width = moved = tensor.element_size()
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if stride * width - moved < _SECTOR:
            moved += (size - 1) * stride * width
        else:
            moved = size * max(moved, _SECTOR)
    return moved
