"""The gates of a question that a training step has not: the last layer's whole product, and telling an answer.

Guarantee (`tests/protocols/share/serving/test_views.py`): what the asking party is told of its answers is the answer
under the answering party's noise, less its own share. So it can be simulated from the answer to all its bits (with the
roundings of layers before, whose coins it knows), and says nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bilateral.protocols.share.circuit.plaintext import spread_bias
from bilateral.protocols.share.gates.talk import Hear, Tell
from bilateral.protocols.share.ring.streams import Stream
from bilateral.protocols.share.training.plain import Plain
from bilateral.protocols.share.training.roles import Dealing, First, FirstModel, Gate, Masked, Role, Second
from bilateral.protocols.share.training.terms import StepTerms


class Revealing(Role):
    """What `script` asks of a party, beside the gates of a step."""

    @abstractmethod
    def apply_whole(self, layer: int, masked: Masked) -> Gate:
        """The linear layer of a masked value, with its bias, not truncated."""

    @abstractmethod
    def tell_second(self, x: Tensor, noise_bits: int) -> Gate:
        """x for the second party alone, plus noise that is uniform in so many of the lowest bits."""

    @property
    def watches(self) -> bool:
        """Something must have stayed in its range."""
        return bool(self._watched)


class Answering(First, Revealing):
    """The party with the weights. `own`: a seed that nobody else knows."""

    def __init__(
        self,
        terms: StepTerms,
        model: FirstModel,
        dealt: Iterable[Tensor],
        with_dealer: bytes,
        with_other: bytes,
        own: bytes,
        dealer: str,
    ) -> None:
        super().__init__(terms, model, dealt, with_dealer, with_other, dealer)
        self._own = own

    def apply_whole(self, layer: int, masked: Masked) -> Gate:
        y = self._model.maps[layer](masked.part)
        y -= self._take("a share of a product of masks", tuple(y.shape))
        return y + spread_bias(self._model.layers[layer].bias, self.terms.linear_steps[layer])
        yield

    def tell_second(self, x: Tensor, noise_bits: int) -> Gate:
        noise = Stream.of(self._own, "output", 0, self.terms.batch_size).words(*x.shape)
        yield Tell(x + (noise & ((1 << noise_bits) - 1)))
        return torch.zeros_like(x)


class Asking(Second, Revealing):
    """The party with the inputs."""

    def apply_whole(self, layer: int, masked: Masked) -> Gate:
        done = self._products.pop((layer, False), None)
        y = self._product(layer, masked.part) if done is None else done
        return y - self._stream("linear", 2 * layer).words(*y.shape)
        yield

    def tell_second(self, x: Tensor, noise_bits: int) -> Gate:
        del noise_bits
        heard: Tensor = yield Hear("answers", tuple(x.shape))
        return x + heard


class DealingAnswers(Dealing, Revealing):
    """The dealer. `weight_masks`: the same for all questions of a session, in which the weights are sent once."""

    def __init__(
        self, terms: StepTerms, seeds: tuple[bytes, bytes] | None, weight_masks: Sequence[Tensor] = ()
    ) -> None:
        super().__init__(terms, seeds)
        self._weights = dict(enumerate(weight_masks))

    def apply_whole(self, layer: int, masked: Masked) -> Gate:
        shape = (len(masked.part), *self.terms.linear_values[layer].shape)
        if self.is_dry:
            self._deal(torch.empty(shape, dtype=torch.int64, device="meta"))
        else:
            product = self._product_of_masks(layer, masked.part)
            self._deal(product - self._streams("linear", 2 * layer)[1].words(*shape))
        return torch.empty(shape, dtype=torch.int64, device="meta")
        yield

    def tell_second(self, x: Tensor, noise_bits: int) -> Gate:
        del noise_bits
        return x
        yield


class PlainAnswers(Plain, Revealing):
    """Everything in one hand, without noise."""

    def apply_whole(self, layer: int, masked: Masked) -> Gate:
        bias = spread_bias(self._model.layers[layer].bias, self.terms.linear_steps[layer])
        return self._model.maps[layer](masked.part) + bias
        yield

    def tell_second(self, x: Tensor, noise_bits: int) -> Gate:
        del noise_bits
        return x
        yield

    @property
    def watches(self) -> bool:
        return False


def session_weight_masks(terms: StepTerms, seed: bytes) -> tuple[Tensor, ...]:
    """What masks the weights of a session: known to the answering party and the dealer."""
    layers = zip(terms.linear_steps, terms.linear_sources, strict=True)
    shapes = [step.weight_shape(source) for step, source in layers]
    return tuple(Stream.of(seed, "weights", layer, 0).words(*shape) for layer, shape in enumerate(shapes))
