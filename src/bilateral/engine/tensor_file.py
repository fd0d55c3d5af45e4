"""Reading a safetensors file that somebody else may have written: its texts and tensors, or one `ValueError`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

DTYPES: Final = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16}
    | {torch.int32, torch.int64, torch.complex64, torch.complex128}
)
"""What networks are made of. Formats packed into parts of a byte have no arithmetic here, and no checksum."""


@dataclass(frozen=True, eq=False)
class TensorFile:
    """The content of a file."""

    texts: dict[str, str]
    tensors: dict[str, Tensor]

    def text(self, name: str) -> str:
        if name not in self.texts:
            raise ValueError(f"it has no text {name!r}")
        return self.texts[name]


def read_tensor_file(path: Path) -> TensorFile:
    """All of a file. Its tensors lie in the file, and take no more memory than it has bytes."""
    try:
        with safe_open(path, framework="pt") as file:
            texts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{error}") from error
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name[:80]} is {tensor.dtype}, which no network here has")
    return TensorFile(texts, tensors)
