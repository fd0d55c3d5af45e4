"""Running a network without its dropout, wherever that is: a layer, a function, an argument of attention or of an LSTM.

Two runs of one network are compared with it. Seeds would not do: what a seed drops depends on how a value lies in
memory, and channels that changed places lose other elements.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DROPOUTS: Final = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout,
    torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout,
}  # fmt: skip
_ARGUMENTS: Final[dict[Any, tuple[int, str, Any]]] = {
    F.scaled_dot_product_attention: (4, "dropout_p", 0.0),
    F.multi_head_attention_forward: (13, "training", False),
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), (5, "dropout", 0.0)),
}
"""Functions with dropout inside: place and name of the argument that switches it off, and its value."""


class NoDropout(TorchFunctionMode):
    """While active, dropout and stochastic depth let everything through."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is torch.bernoulli:
            return torch.ones_like(args[0])
        if func is Tensor.bernoulli_:
            return args[0].fill_(1.0)
        if func in _ARGUMENTS:
            args, kwargs = _switched_off(func, args, kwargs)
        return self.call(func, args, kwargs)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What is no dropout."""
        return func(*args, **kwargs)


def _switched_off(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    place, name, value = _ARGUMENTS[func]
    if len(args) > place:
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}
