"""Networks by name: MLPs, LeNet, VGG-7, a small ConvNet, ResNets, a DenseNet, and the user's own.

Formal guarantees (each has a test of this name):
- the last layer is an `nn.Linear` called `head`, and its output is the network's;
- every network is traceable by `torch.fx`, and ReLU and max pooling are its only nonlinearities;
- initial weights depend on the seed only, and building draws nothing from torch's global generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import torch
from torch import nn

from bilateral.arguments import require
from bilateral.data.several import Shapes
from bilateral.errors import ModelError
from bilateral.models.zoo import convnets, densenet, mlp, resnet
from bilateral.models.zoo.layers import require_count
from bilateral.models.zoo.user_function import accepted_names, call_builder, import_builder

__all__ = ["build_model", "model_names", "outline_model"]

_BUILDERS: Final[Mapping[str, Callable[..., nn.Module]]] = {
    **mlp.BUILDERS,
    **convnets.BUILDERS,
    **resnet.BUILDERS,
    **densenet.BUILDERS,
}
_ALWAYS_GIVEN: Final = ("input_shape", "num_outputs")


def model_names() -> tuple[str, ...]:
    """The names that `build_model` knows, family by family, small to large."""
    return tuple(sorted(_BUILDERS, key=_family_and_depth))


def build_model(
    name: str, /, *, input_shape: tuple[int, ...] | Shapes, num_outputs: int, seed: int = 0, **options: Any
) -> nn.Module:
    """A new network on the CPU, its initial weights drawn from `seed`.

    `name` is one of `model_names()`, or `package.module:function` for a network of your own: that function is
    called with `input_shape` and `num_outputs` (where it has such parameters) and the options.
    `input_shape` is the shape of one sample: (channels, height, width) or (features,); for a network of your own with
    several inputs a tuple of shapes, or a dict of them.
    """
    require(name, str, "build_model: expected `name` to be")
    shape = _checked_shapes(name, input_shape)
    given = {"input_shape": shape, "num_outputs": require_count("num_outputs", num_outputs)}
    builder = import_builder(name) if ":" in name else _zoo_builder(name)
    _check_options(name, builder, options)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        _seed_cpu_generator(seed)
        return call_builder(name, given, options) if ":" in name else _BUILDERS[name](**given, **options)


def outline_model(name: str, /, *, input_shape: tuple[int, ...], num_outputs: int, **options: Any) -> nn.Module:
    """A network of the zoo with shapes and no numbers ("meta"): it takes no memory, however large it would be."""
    require(name, str, "outline_model: expected `name` to be")
    builder = _zoo_builder(name)
    options.pop("seed", None)
    _check_options(name, builder, options)
    with torch.device("meta"):
        return builder(
            input_shape=_checked_shape(input_shape), num_outputs=require_count("num_outputs", num_outputs), **options
        )


def _seed_cpu_generator(seed: int) -> None:
    """`torch.manual_seed` would reseed the GPUs too, and `fork_rng(devices=[])` restores the CPU only."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ModelError(f"Expected the seed to be a whole number from 0 to 2^64 - 1, got {seed!r}.")
    torch.default_generator.manual_seed(seed)


def _family_and_depth(name: str) -> tuple[str, int]:
    family, _, depth = name.partition("-")
    return family, int(depth or 0)


def _zoo_builder(name: str) -> Callable[..., nn.Module]:
    if name in _BUILDERS:
        return _BUILDERS[name]
    close = get_close_matches(name.lower(), _BUILDERS, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    raise ModelError(
        f"Expected a model among {', '.join(model_names())}; got {name!r}.",
        remedy=f"{hint}A network of your own is named 'package.module:function'.",
    )


def _check_options(name: str, builder: Callable[..., object], options: Mapping[str, Any]) -> None:
    names, takes_any = accepted_names(builder)
    unknown = [] if takes_any else [option for option in options if option not in names]
    if unknown:
        accepted = ", ".join(option for option in names if option not in _ALWAYS_GIVEN)
        raise ModelError(
            f"Expected options of {name!r} among: {accepted or 'none'}; got {', '.join(unknown)}.",
            remedy="Remove or rename what is not accepted.",
        )


def _checked_shapes(name: str, given: tuple[int, ...] | Shapes) -> tuple[int, ...] | Shapes:
    """The shape of one input, or those of several, which networks of the zoo do not take."""
    if isinstance(given, dict):
        several: Shapes | None = {key: _checked_shape(shape) for key, shape in given.items()}
    elif isinstance(given, tuple) and given and all(isinstance(shape, tuple) for shape in given):
        several = tuple(_checked_shape(shape) for shape in given)  # type: ignore[arg-type]
    else:
        several = None
    if several is not None and ":" not in name:
        raise ModelError(
            f"{name} takes one input, and these data have {len(several)}.",
            remedy="Name a network of your own that takes them, 'package.module:function', or give one tensor.",
        )
    return _checked_shape(given) if several is None else several  # type: ignore[arg-type]


def _checked_shape(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    if not isinstance(input_shape, tuple | list) or not input_shape:
        raise ModelError(
            f"Expected input_shape to be the shape of one sample, got {input_shape!r}.",
            remedy="Give (channels, height, width) for images, (features,) for tables.",
        )
    return tuple(require_count("every number in input_shape", size) for size in input_shape)
