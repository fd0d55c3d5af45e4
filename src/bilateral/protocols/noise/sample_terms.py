"""Every sample's own terms: what per-sample clipping acts on.

A batch is a mean over samples, and a sample's terms are what a batch of that sample alone would upload. At the head the
terms have a closed form, as in `perturb/terms.py`; below it they are vector-Jacobian products.

Formal guarantee (tests/protocols/noise/test_sample_independence.py, test_clipping_sample_terms.py): `SampleTerms` gives
what a loop over batches of one sample gives, and the mean over samples is the ordinary upload's terms. **A sample's
terms are a function of that sample, the model and the round's key alone, to the last bit**: the sensitivity of the
clipped sum is false without it. Kernels choose the order of their additions by the shape of a batch, and where an
activation is at its kink the last bit decides about a whole gradient. So there is no batch (docs/decisions/0020):

- samples are computed one after the other, each in memory of its own (equally aligned) and on one thread;
- random layers draw from a stream that belongs to the sample: the round's key, the sample's bytes, and how often the
  same bytes came before (equal samples are exchangeable);
- buffers that a layer writes are put back before the next sample;
- which way the terms are computed (`_batches_terms`) is decided by an input of zeros, not by a sample.

Assumed: a kernel that is called twice with the same bytes, shapes and alignment, on one thread of one machine, gives
the same bytes; layers keep no state but in buffers.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bilateral.errors import UnsoundPlanError
from bilateral.models.modes import kept_in_evaluation
from bilateral.protocols.flat_gradients import FlatGradients
from bilateral.protocols.local_model import LocalModel
from bilateral.protocols.noise.one_thread import one_thread
from bilateral.protocols.objective import Objective
from bilateral.protocols.perturb.scheme import Cotangents

CotangentsOf = Callable[[Tensor, Tensor, Tensor], Cotangents]
"""(head inputs, outputs, targets) of a batch of one sample -> cotangents of its terms."""


def refuse_batch_norm(model: nn.Module) -> None:
    """Refuse models in which a sample has no gradient of its own. BatchNorm that stays in evaluation mode is none."""
    kept = kept_in_evaluation(model)
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (name not in kept or module.running_mean is None)
    ]
    if found:
        raise UnsoundPlanError(
            "Clipping bounds what one sample or client changes, but BatchNorm mixes the samples of a batch and uploads "
            f"statistics that nothing bounds: `{'`, `'.join(found)}`.",
            remedy="Use a model with GroupNorm (or without normalisation).",
        )


class SampleGradients:
    """Per-sample gradients of any module, one sample after the other; a term is the gradient itself."""

    def __init__(self, model: LocalModel) -> None:
        refuse_batch_norm(model.module)
        self._model = model
        self.shape = (1, sum(p.numel() for p in model.parameters))

    def chunks(self, inputs: Tensor, targets: Tensor, objective: Objective) -> Iterator[Tensor]:
        """1 x 1 x parameters for each sample, in the batch's order; nothing for an empty batch."""
        for x, target, seed in _one_at_a_time(self._model.module, inputs, targets):
            yield self._of_one(x, target, objective, seed)[None]

    def _of_one(self, x: Tensor, target: Tensor, objective: Objective, seed: int) -> Tensor:
        with _alone(seed):
            outputs = self._model.module(x)
            root, at_root = outputs, None
            if isinstance(outputs, Tensor):
                at_root = objective.cotangents(outputs.detach(), target)
            else:  # several heads
                root = objective.of_batch(outputs, target)
            row = torch.empty(self.shape, dtype=self._model.dtype)
            FlatGradients(root, self._model.parameters).write(row[0], at_root, {}, last=True)
            return row


class SampleTerms:
    """Per-sample terms of a traced model, one sample after the other."""

    def __init__(self, model: LocalModel, num_terms: int) -> None:
        refuse_batch_norm(model.module)
        self._model = model
        self.shape = (num_terms, sum(p.numel() for p in model.parameters))
        head = (model.head.weight, model.head.bias)
        self._body = [p for p in model.parameters if p.requires_grad and all(p is not own for own in head)]
        self._batches_terms: bool | None = None if num_terms > 1 else False

    def chunks(self, inputs: Tensor, targets: Tensor, cotangents_of: CotangentsOf) -> Iterator[Tensor]:
        """1 x terms x parameters for each sample, in the batch's order; nothing for an empty batch."""
        for x, target, seed in _one_at_a_time(self._model.module, inputs, targets):
            if self._batches_terms is None:
                buffers = _buffers_of(self._model.module)
                self._batches_terms = self._can_batch_terms(x, target, cotangents_of)
                _put_back(buffers)
            yield self._of_one(x, target, cotangents_of, seed, batched=self._batches_terms)[None]

    def _of_one(self, x: Tensor, target: Tensor, cotangents_of: CotangentsOf, seed: int, *, batched: bool) -> Tensor:
        """Terms x parameters of a batch of this sample alone."""
        with _alone(seed):
            h, outputs = self._run(x)
            cotangents = cotangents_of(h.detach(), outputs.detach(), target)
            found = self._head_terms(cotangents, h.detach())
            if self._body and h.requires_grad:
                rows = self._below_head(cotangents, h.detach())
                gradients = _batched_terms(h, self._body, rows) if batched else _looped_terms(h, self._body, rows)
                found |= {p: g for p, g in zip(self._body, gradients, strict=True) if g is not None}
            return self._in_order(found, h.detach())

    def _can_batch_terms(self, x: Tensor, target: Tensor, cotangents_of: CotangentsOf) -> bool:
        """Whether `vmap` has a rule for the backward pass of every operation, so that all terms take one pass.

        All layers that the scale graph knows have one; a user's own `autograd.Function` without `generate_vmap_rule`
        has none, and takes one pass a term. What is wrong in itself (a shape, say) is raised there. The question is
        asked with zeros of the sample's shape: the answer must not depend on data.
        """
        try:
            self._of_one(torch.zeros_like(x), torch.zeros_like(target), cotangents_of, 0, batched=True)
        except (RuntimeError, NotImplementedError):
            return False
        return True

    def _run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The head's inputs and outputs, with their graph."""
        captured: list[Tensor] = []
        handle = self._model.head.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
        try:
            outputs: Tensor = self._model.module(x)
        finally:
            handle.remove()
        return captured[0], outputs

    def _head_terms(self, cotangents: Cotangents, h: Tensor) -> dict[Tensor, Tensor]:
        outputs, head = cotangents.outputs.to(h.dtype), self._model.head
        found: dict[Tensor, Tensor] = {}
        if head.weight.requires_grad:
            found[head.weight] = outputs.transpose(1, 2) @ h
        if head.bias is not None and head.bias.requires_grad:
            found[head.bias] = outputs.sum(1)
        return found

    def _below_head(self, cotangents: Cotangents, h: Tensor) -> Tensor:
        """Cotangents of the head's inputs (terms x 1 x features)."""
        below = cotangents.outputs.to(h.dtype) @ self._model.head.weight.detach()
        if cotangents.activation_sum is None:
            return below
        return below + cotangents.activation_sum.to(h.dtype)[:, :, None]

    def _in_order(self, found: dict[Tensor, Tensor], h: Tensor) -> Tensor:
        """Laid end to end in the flat order; what has no gradient (frozen) is 0."""
        num_terms = self.shape[0]
        parts = [
            found[p].reshape(num_terms, -1) if p in found else h.new_zeros(num_terms, p.numel())
            for p in self._model.parameters
        ]
        return torch.cat(parts, dim=1)


def _batched_terms(h: Tensor, body: Sequence[Tensor], rows: Tensor) -> Sequence[Tensor | None]:
    """Gradients of all terms by one pass: its shapes depend on the number of terms alone."""
    return torch.autograd.grad(h, body, rows, is_grads_batched=True, allow_unused=True)


def _looped_terms(h: Tensor, body: Sequence[Tensor], rows: Tensor) -> Sequence[Tensor | None]:
    """Gradients by one pass a term."""
    last = len(rows) - 1
    passes = [
        torch.autograd.grad(h, body, row, retain_graph=number < last, allow_unused=True)
        for number, row in enumerate(rows)
    ]
    return [None if column[0] is None else torch.stack(column) for column in zip(*passes, strict=True)]


def _one_at_a_time(module: nn.Module, inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Each sample as a batch of its own, with its seed; buffers are put back after it."""
    streams = _Streams(_draw_key())
    buffers = _buffers_of(module)
    for x, target in zip(inputs, targets, strict=True):
        # Memory of its own: a view would begin wherever the sample's place in the batch says.
        own = _aligned(x), _aligned(target)
        yield *own, streams.seed(*own)
        _put_back(buffers)


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """One thread, and a stream of random numbers that belongs to the sample."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _buffers_of(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(buffer, buffer.clone()) for buffer in module.buffers()]


def _aligned(value: Tensor) -> Tensor:
    """A batch of this sample alone, in memory of its own: torch aligns all that it allocates alike."""
    return value[None].clone(memory_format=torch.contiguous_format)


def _put_back(buffers: Sequence[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)


def _draw_key() -> bytes:
    """The round's key, from the generator that the client seeds for the round; not one draw depends on the batch."""
    return bytes(torch.randint(256, (32,)).tolist())


class _Streams:
    """Which seed a sample's random layers (dropout) have: a stream of the batch would shift with every sample."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._seen: Counter[bytes] = Counter()

    def seed(self, x: Tensor, target: Tensor) -> int:
        """Equal samples have different seeds, in an order that does not matter since they are equal."""
        content = hashlib.blake2b(key=self._key)
        for value in (x, target):
            content.update(value.numpy().tobytes())
        digest = content.digest()
        self._seen[digest] += 1
        numbered = digest + self._seen[digest].to_bytes(8, "little")
        return int.from_bytes(hashlib.blake2b(numbered, digest_size=7, key=self._key).digest(), "little")
