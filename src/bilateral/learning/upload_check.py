"""One rule for what an upload may be, whatever sums it: who breaks it is left out of the round, and nobody else.

Under ring masks the server sees a vector of integers, and clients check their own uploads by this rule's other half
(`fixed_point`). Where uploads come as they are, everything is checked here, before anything is added up. What cannot be
seen is whether numbers of the right form are the right numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bilateral.errors import NumericalRangeError, ProtocolError
from bilateral.protocols.mask.fixed_point import MAX_BOUND_BITS, MAX_WEIGHT
from bilateral.protocols.messages import Upload, UploadShape

_DTYPES = (torch.float32, torch.float64)


def check_upload(upload: Upload, round_index: int, shape: UploadShape, sender: str) -> None:
    """Raise a `ProtocolError` that names the sender and what is wrong."""
    if type(upload.round_index) is not int or upload.round_index != round_index:
        raise ProtocolError(
            f"Upload from {sender} is of round {upload.round_index!r}, expected {round_index}.",
            remedy="It came late or was sent twice; it is not used.",
        )
    _check_weight(upload.weight, shape.weight, sender)
    for name, size in (("terms", (shape.num_terms, shape.num_parameters)), ("statistics", (shape.num_statistics,))):
        values = getattr(upload, name)
        if not isinstance(values, Tensor) or (values.dtype not in _DTYPES and values.numel()):
            got = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise ProtocolError(
                f"Upload from {sender}: expected real numbers in `{name}`, got {got}.",
                remedy="Upload float32 or float64.",
            )
        upload.expect_shape(sender, name, size)
        _check_size(values, name, upload.weight, sender)


def _check_weight(weight: object, fixed: int | None, sender: str) -> None:
    if type(weight) is not int or not 1 <= weight <= MAX_WEIGHT or fixed not in (None, weight):
        expected = (
            f"a weight of {fixed}, as the plan has it" if fixed else "a whole number between 1 and 2^40 as weight"
        )
        raise ProtocolError(
            f"Upload from {sender}: expected {expected}, got {str(weight)[:40]}.",
            remedy="Both sides must run the same plan; leave out clients without data.",
        )


def is_out_of_range(upload: Upload) -> bool:
    """Whether its numbers alone are too large for any sum, whatever the weight: what a training that diverges gives."""
    return any(
        isinstance(values, Tensor) and values.dtype in _DTYPES and not _fits(values, 1)
        for values in (upload.terms, upload.statistics)
    )


def _fits(values: Tensor, weight: int) -> bool:
    """As in the ring: what is larger could take the sum out of the range of real numbers."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values)
    largest = max(-float(low), float(high))
    return not math.isnan(largest) and largest * weight <= math.ldexp(1.0, MAX_BOUND_BITS)


def _check_size(values: Tensor, name: str, weight: int, sender: str) -> None:
    if not _fits(values, weight):
        raise NumericalRangeError(
            f"Upload from {sender}: `{name}` holds NaN or infinite values, or values that are beyond "
            f"2^{MAX_BOUND_BITS} times their weight.",
            remedy="Check that client's data and the learning rate.",
        )
