"""Every sample's own terms: what per-sample clipping acts on.

A batch is a mean over samples, and a sample's terms are what a batch of that sample alone would upload. They are
found by `torch.func`: one forward pass a sample, then one vector-Jacobian product a term, vectorised over both by
`vmap`. At the head the terms have a closed form, as in `perturb/terms.py`.

Formal guarantee (tests/protocols/noise/test_clipping_sample_terms.py): `SampleTerms` gives what a loop over batches of
one sample gives, and the mean over samples is the ordinary upload's terms.

Samples are taken in chunks: at most `CHUNK_BYTES` of terms exist at a time (or one sample's, if those are more; three
times that while they are added up in float64), beside the activations of as many samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from bilateral.errors import UnsoundPlanError
from bilateral.protocols.local_model import LocalModel
from bilateral.protocols.perturb.scheme import Cotangents

CHUNK_BYTES: Final = 1 << 24
"""Of 1 to 64 MiB the quickest: less starts too many passes, more leaves the processor's cache."""

CotangentsOf = Callable[[Tensor, Tensor, Tensor], Cotangents]
"""(head inputs, outputs, targets) of a batch of one sample -> cotangents of its terms."""


def refuse_batch_norm(model: nn.Module) -> None:
    """Refuse models in which a sample has no gradient of its own."""
    found = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    if found:
        raise UnsoundPlanError(
            "Clipping bounds what one sample or client changes, but BatchNorm mixes the samples of a batch and uploads "
            f"statistics that nothing bounds: `{'`, `'.join(found)}`.",
            remedy="Use a model with GroupNorm (or without normalisation).",
        )


class SampleTerms:
    """Per-sample terms of a client's model, chunk by chunk."""

    def __init__(self, model: LocalModel, num_terms: int) -> None:
        refuse_batch_norm(model.module)
        self._model = model
        self.shape = (num_terms, sum(p.numel() for p in model.parameters))
        names: dict[Tensor, str] = {p: name for name, p in model.module.named_parameters()}
        self._order = [names[p] for p in model.parameters]
        self._head_weight = names[model.head.weight]
        self._head_bias = names[model.head.bias] if model.head.bias is not None else None
        head = (self._head_weight, self._head_bias)
        self._body = [name for name in self._order if name not in head and self._parameters()[name].requires_grad]
        self._vectorises: bool | None = None

    @property
    def chunk_size(self) -> int:
        """Samples whose terms fit the bound, at least one."""
        of_one = self.shape[0] * self.shape[1] * self._model.head.weight.element_size()
        return max(1, CHUNK_BYTES // of_one)

    def chunks(self, inputs: Tensor, targets: Tensor, cotangents_of: CotangentsOf) -> Iterator[Tensor]:
        """Samples x terms x parameters, in the batch's order; nothing for an empty batch."""
        if len(inputs) == 0:
            return
        if self._vectorises is None:
            self._vectorises = self._can_vectorise(inputs[:1], targets[:1], cotangents_of)
        compute = self._vectorised if self._vectorises else self._looped
        size = self.chunk_size
        for part, goals in zip(torch.split(inputs, size), torch.split(targets, size), strict=True):
            yield compute(part, goals, cotangents_of)

    def _can_vectorise(self, inputs: Tensor, targets: Tensor, cotangents_of: CotangentsOf) -> bool:
        """Whether `vmap` has a rule for every operation of the model, found by running it on one sample.

        All layers that the scale graph knows have one; a user's own `autograd.Function` without `generate_vmap_rule`
        has none, and such a model takes the loop. What is wrong in itself (a shape, say) is raised there.
        """
        with torch.random.fork_rng(devices=[]):  # the probe must not use up the round's dropout
            try:
                self._vectorised(inputs, targets, cotangents_of)
            except (RuntimeError, NotImplementedError):
                return False
        return True

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._model.module.named_parameters())

    @torch.no_grad()
    def _vectorised(self, inputs: Tensor, targets: Tensor, cotangents_of: CotangentsOf) -> Tensor:
        values = {name: p.detach() for name, p in self._parameters().items()}

        def of_one(x: Tensor, target: Tensor) -> Tensor:
            return self._by_torch_func(values, x, target, cotangents_of)

        result: Tensor = vmap(of_one, randomness="different")(inputs, targets)
        return result

    def _looped(self, inputs: Tensor, targets: Tensor, cotangents_of: CotangentsOf) -> Tensor:
        """One sample and one term after the other, by plain autograd."""
        own = self._parameters()
        rows = [self._by_autograd(own, x, t, cotangents_of) for x, t in zip(inputs, targets, strict=True)]
        return torch.stack(rows)

    def _by_torch_func(
        self, values: dict[str, Tensor], x: Tensor, target: Tensor, cotangents_of: CotangentsOf
    ) -> Tensor:
        """Terms x parameters of one sample (no batch dimension), by `torch.func`."""
        body = {name: values[name] for name in self._body}
        fixed = {name: value for name, value in values.items() if name not in body}

        def head_input_and_output(trained: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            return self._run({**trained, **fixed}, x)

        if not body:  # nothing below the head is trained
            h, outputs = head_input_and_output({})
            return self._in_order(self._head_terms(cotangents_of(h, outputs, target[None]), h), values, h)
        traced: tuple[Any, ...] = vjp(head_input_and_output, body, has_aux=True)
        h, pull_back, outputs = traced
        cotangents = cotangents_of(h, outputs, target[None])
        below = self._below_head(cotangents, values[self._head_weight], h)
        found = self._head_terms(cotangents, h) | vmap(pull_back)(below)[0]
        return self._in_order(found, values, h)

    def _by_autograd(
        self, own: dict[str, nn.Parameter], x: Tensor, target: Tensor, cotangents_of: CotangentsOf
    ) -> Tensor:
        h, outputs = self._run(dict(own), x)
        cotangents = cotangents_of(h.detach(), outputs.detach(), target[None])
        found = self._head_terms(cotangents, h.detach())
        body: list[Tensor] = [own[name] for name in self._body]
        if body and h.requires_grad:
            below = self._below_head(cotangents, own[self._head_weight].detach(), h.detach())
            rows = [torch.autograd.grad(h, body, row, retain_graph=True, allow_unused=True) for row in below]
            for name, *gradients in zip(self._body, *rows, strict=True):
                found[name] = torch.stack([torch.zeros_like(own[name]) if g is None else g for g in gradients])
        return self._in_order(found, dict(own), h.detach())

    def _run(self, values: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """The head's inputs and outputs for a batch of this sample alone."""
        captured: list[Tensor] = []
        handle = self._model.head.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
        try:
            outputs: Tensor = functional_call(self._model.module, values, (x[None],))
        finally:
            handle.remove()
        return captured[0], outputs

    def _head_terms(self, cotangents: Cotangents, h: Tensor) -> dict[str, Tensor]:
        outputs = cotangents.outputs.to(h.dtype)
        found = {}
        if self._model.head.weight.requires_grad:
            found[self._head_weight] = outputs.transpose(1, 2) @ h
        if self._head_bias is not None and self._parameters()[self._head_bias].requires_grad:
            found[self._head_bias] = outputs.sum(1)
        return found

    def _below_head(self, cotangents: Cotangents, weight: Tensor, h: Tensor) -> Tensor:
        """Cotangents of the head's inputs (terms x 1 x features)."""
        below = cotangents.outputs.to(h.dtype) @ weight
        if cotangents.activation_sum is None:
            return below
        return below + cotangents.activation_sum.to(h.dtype)[:, :, None]

    def _in_order(self, found: dict[str, Tensor], values: dict[str, Tensor], h: Tensor) -> Tensor:
        """Laid end to end in the flat order; what has no gradient (frozen) is 0."""
        num_terms = self.shape[0]
        parts = [
            found[name].reshape(num_terms, -1) if name in found else h.new_zeros(num_terms, values[name].numel())
            for name in self._order
        ]
        return torch.cat(parts, dim=1)
