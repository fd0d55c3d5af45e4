"""A client's upload of the round under way, kept in case that it is to be masked again."""

from __future__ import annotations

import tempfile
from typing import IO

import torch
from torch import Tensor

from bilateral.protocols.messages import Upload

LEAST_BYTES = 1 << 20
"""Smaller uploads stay in memory."""


class KeptUpload:
    """One upload and what it depends on. Secret.

    `on_disk`: where many clients share a process, each would hold as much as the model until the round ends. There a
    large upload goes to a file without a name, gone with this object or the process, and comes back bit for bit.
    """

    def __init__(self, upload: Upload, context: bytes, *, on_disk: bool = False) -> None:
        self._context = context
        self._upload: Upload | None = upload
        self._file: IO[bytes] | None = None
        if on_disk and upload.terms.numel() * upload.terms.element_size() >= LEAST_BYTES:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 closed when it is let go
            self._file.write(_bytes_of(upload.terms))
            self._file.flush()
            self._form = upload.terms.shape, upload.terms.dtype
            self._rest = upload.round_index, upload.weight, upload.statistics
            self._upload = None

    @property
    def is_on_disk(self) -> bool:
        return self._file is not None

    def both(self) -> tuple[Upload, bytes]:
        """The upload and its context."""
        if self._upload is not None:
            return self._upload, self._context
        assert self._file is not None
        self._file.seek(0)
        shape, dtype = self._form
        read = torch.frombuffer(bytearray(self._file.read()), dtype=dtype).reshape(shape)
        round_index, weight, statistics = self._rest
        return Upload(round_index, weight, read, statistics), self._context


def _bytes_of(values: Tensor) -> memoryview:
    found: memoryview = values.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return found
