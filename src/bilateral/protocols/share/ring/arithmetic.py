"""Numbers modulo 2^64: fixed point, and exact linear maps.

A ring element is an int64: two's complement is Z_2^64, and sums, differences and products of int64 wrap as they should.
A linear map is prepared once for its weights and then applied to any number of inputs; the result is always exact.

    path      where             how
    kernel    CPU               the fastest of the next three, or what `BILATERAL_RING_KERNEL` names
    amx       CPU with AMX      8-bit digits in tiles, made by numba (amx.py)
    avx512    CPU               products of 64-bit numbers in vectors, made by numba (cpu.py, kernels.py)
    vector    CPU               the same by halves of words, for CPUs that multiply no 64-bit numbers
    limbs     CPU and CUDA      float64 products of limbs (limbs.py)
    torch     CPU               torch's own int64 products: slow, and the reference for the others
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.errors import NumericalRangeError, PlanError, ProtocolError
from bilateral.protocols.share.ring import cpu_features
from bilateral.protocols.share.ring.limbs import LimbConv2d, LimbLinear
from bilateral.protocols.share.ring.window import Window

Path = Literal["kernel", "amx", "avx512", "vector", "limbs", "torch"]
WORD_BITS = 64
ENCODED_BITS = 62  # an encoded value leaves a bit for a sum of two


class LinearMap(Protocol):
    """A linear map over the ring with fixed weights."""

    def __call__(self, x: Tensor) -> Tensor: ...


def encode(values: Tensor, fraction_bits: int) -> Tensor:
    """`values * 2^fraction_bits`, rounded to the nearest integer (ties to even), as ring elements.

    Guarantee: `decode(encode(v))` differs from `v` by at most half a unit of the last place, 2^-(fraction_bits + 1).
    """
    scaled = values.double() * 2.0**fraction_bits
    bad = ~(scaled.abs() < 2.0**ENCODED_BITS)  # also true for NaN
    if bad.any():
        limit = ENCODED_BITS - fraction_bits
        raise NumericalRangeError(
            f"Expected finite values below 2^{limit} with {fraction_bits} fractional bits, "
            f"got {int(bad.sum())} of {bad.numel()} that are not.",
            remedy="Scale the values down, or use fewer fractional bits.",
        )
    return scaled.round().long()


def decode(ring: Tensor, fraction_bits: int) -> Tensor:
    """Ring elements as float64. Exact for values below 2^53 units of the last place, else rounded to 53 bits."""
    return ring.double() * 2.0**-fraction_bits


def prepare_linear(weight: Tensor, *, weight_bits: int = WORD_BITS, path: Path | None = None) -> LinearMap:
    """`x (batch, in) -> x @ weight.T (batch, out)` modulo 2^64, exact. `weight` is (out, in).

    `weight_bits`: every weight fits so many bits signed (checked); small ones are faster.
    """
    _check_weight(weight, 2, weight_bits)
    chosen = _choose(path, weight.device)
    if chosen == "limbs":
        return _Linear(weight, LimbLinear(weight, weight_bits))
    if chosen == "torch":
        return _Linear(weight, lambda x: F.linear(x, weight))
    from bilateral.protocols.share.ring import cpu  # noqa: PLC0415 (imports numba)

    return _Linear(weight, cpu.linear(weight, weight_bits, _kernel(chosen)))


def prepare_conv2d(
    weight: Tensor,
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    weight_bits: int = WORD_BITS,
    path: Path | None = None,
) -> LinearMap:
    """`x (batch, in, h, w) -> (batch, out, h', w')`: torch's conv2d modulo 2^64, exact, contiguous.

    `weight` is (out, in/groups, kh, kw).
    `weight_bits`: every weight fits so many bits signed (checked); small ones are faster.
    """
    _check_weight(weight, 4, weight_bits)
    window = Window((weight.shape[2], weight.shape[3]), stride, padding, dilation, groups)
    _check_window(weight, window)
    chosen = _choose(path, weight.device)
    if chosen == "limbs":
        return _Conv2d(weight, window, LimbConv2d(weight, window, weight_bits))
    if chosen == "torch":
        return _Conv2d(weight, window, lambda x: F.conv2d(x, weight, None, stride, padding, dilation, groups))
    from bilateral.protocols.share.ring import cpu  # noqa: PLC0415 (imports numba)

    return _Conv2d(weight, window, cpu.conv2d(weight, window, weight_bits, _kernel(chosen)))


class _Linear:
    """Checks inputs, and answers what needs no products: then `product` has something to add up."""

    def __init__(self, weight: Tensor, product: LinearMap) -> None:
        self._out, self._in = weight.shape
        self._device, self._product = weight.device, product

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != self._in or x.dtype != torch.int64 or x.device != self._device:
            _check_input(x, (-1, self._in), self._device)
        if x.numel() == 0:
            return x.new_zeros((x.shape[0], self._out))
        return self._product(x)


class _Conv2d:
    """The same for a convolution."""

    def __init__(self, weight: Tensor, window: Window, product: LinearMap) -> None:
        self._out, self._in = weight.shape[0], weight.shape[1] * window.groups
        self._device, self._window, self._product = weight.device, window, product

    def __call__(self, x: Tensor) -> Tensor:
        _check_input(x, (-1, self._in, -1, -1), self._device)
        size = self._window.output_size(x.shape[2], x.shape[3])
        if min(size) < 1:
            raise ProtocolError(
                f"Expected an input that the window of {self._window.kernel} fits into, got {tuple(x.shape)}."
            )
        if x.numel() == 0:
            return x.new_zeros((x.shape[0], self._out, *size))
        return self._product(x)


def _choose(path: Path | None, device: torch.device) -> Path:
    if path is None:
        return "kernel" if device.type == "cpu" and find_spec("numba") is not None else "limbs"
    if path != "limbs" and device.type != "cpu":
        raise PlanError(f"Expected weights on the CPU for path {path!r}, got {device}.", remedy="Use path 'limbs'.")
    if path not in ("limbs", "torch") and find_spec("numba") is None:
        raise PlanError(f"Expected numba for path {path!r}, but it is not installed.", remedy="Use path 'limbs'.")
    return path


def _kernel(path: Path) -> cpu_features.Kernel:
    return cpu_features.choose(None if path == "kernel" else path)


def _check_weight(weight: Tensor, dimensions: int, weight_bits: int) -> None:
    if weight.dtype != torch.int64 or weight.dim() != dimensions or weight.numel() == 0:
        raise ProtocolError(
            f"Expected int64 weights of {dimensions} dimensions, none of them 0, "
            f"got {weight.dtype} of shape {tuple(weight.shape)}."
        )
    if not 1 <= weight_bits <= WORD_BITS:
        raise PlanError(f"Expected weight_bits between 1 and {WORD_BITS}, got {weight_bits}.")
    if weight_bits == WORD_BITS:
        return
    limit = 1 << (weight_bits - 1)
    largest = max(int(weight.max()), -int(weight.min()))
    if largest >= limit:
        raise NumericalRangeError(
            f"Expected weights below 2^{weight_bits - 1} in size (weight_bits={weight_bits}), "
            f"got one of {math.ceil(math.log2(largest + 1))} bits and a sign.",
            remedy="Give more weight_bits, or use fewer fractional bits.",
        )


def _check_window(weight: Tensor, window: Window) -> None:
    if min(*window.stride, *window.dilation, window.groups) < 1 or min(window.padding) < 0:
        raise PlanError(f"Expected positive stride, dilation and groups, and padding of at least 0, got {window}.")
    if weight.shape[0] % window.groups:
        raise PlanError(
            f"Expected output channels in {window.groups} equal groups, got weights of shape {tuple(weight.shape)}."
        )


def _check_input(x: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    fits = len(shape) == x.dim() and all(want in (-1, got) for want, got in zip(shape, x.shape, strict=True))
    if x.dtype != torch.int64 or not fits or x.device != device:
        wanted = ", ".join("any" if size == -1 else str(size) for size in shape)
        raise ProtocolError(
            f"Expected int64 of shape ({wanted}) on {device}, got {x.dtype} of shape {tuple(x.shape)} on {x.device}."
        )
