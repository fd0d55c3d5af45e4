"""A device that is not there: tensors on it say `meta`, have values on the CPU, and meet none of the CPU's tensors.

Inside `PretendDevice()` whatever is moved to (or made on) `meta` becomes such a tensor. An operation between it and a
tensor of the CPU is an error, as it is on any accelerator; copying from one to the other is not, nor are numbers
(tensors without dimensions). So a computation that runs here and gives the CPU's result has every tensor where it
should be.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

aten = torch.ops.aten
DEVICE = torch.device("meta")
_COPIES = {aten._to_copy.default, aten.copy_.default, aten.copy.default}
_MAKERS = {
    aten.empty.memory_format, aten.zeros.default, aten.ones.default, aten.full.default, aten.arange.default,
    aten.arange.start, aten.empty_strided.default, aten.scalar_tensor.default,
}  # fmt: skip


class There(torch.Tensor):
    """A tensor of the pretended device."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=DEVICE, requires_grad=False,
        )  # fmt: skip

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"There({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} outside of PretendDevice()")


class PretendDevice(TorchDispatchMode):
    """Counts the operations that ran there."""

    def __init__(self):
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        there = [leaf for leaf in leaves if isinstance(leaf, There)]
        asked = kwargs.get("device")
        if func in _COPIES:
            return self._copied(func, args, kwargs, asked)
        if not there:
            if asked is not None and torch.device(asked) == DEVICE:
                return There(func(*args, **{**kwargs, "device": "cpu"}))
            return func(*args, **kwargs)
        if foreign := [leaf for leaf in leaves if not isinstance(leaf, There) and leaf.dim()]:
            raise RuntimeError(f"{func}: tensors on two devices: {foreign[0].shape} is on the CPU")
        if asked is not None:
            kwargs["device"] = "cpu"
        self.operations += 1
        found = func(*_inner(args), **_inner(kwargs))
        if func is aten._local_scalar_dense.default:
            return found
        changed = {id(leaf.inner): leaf for leaf in there}
        return tree_map_only(torch.Tensor, lambda t: changed[id(t)] if id(t) in changed else There(t), found)

    def _copied(self, func, args, kwargs, asked):
        if func is aten.copy_.default:
            _inner(args[0]).copy_(_inner(args[1]))
            return args[0]
        source = args[0]
        goes = isinstance(source, There) if asked is None else torch.device(asked) == DEVICE
        found = func(*_inner(args), **{**kwargs, **({"device": "cpu"} if asked is not None else {})})
        return There(found) if goes else found


def _inner(values):
    return tree_map_only(There, lambda t: t.inner, values)
