"""One step among three parties in the test's hands; and the same step in float64, slow and obvious."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from tests.protocols.share.harness import generator, uniform_words
from torch import Tensor

from bilateral.errors import NumericalRangeError
from bilateral.protocols.share.circuit.description import (
    ChannelDropout,
    Circuit,
    Conv,
    Dense,
    Dropout,
    LeakyRelu,
    MaxPool,
    Relu,
)
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.circuit.trainable import compile_trainable
from bilateral.protocols.share.gates.talk import Hear, Speaker, Tell
from bilateral.protocols.share.ring.streams import Stream
from bilateral.protocols.share.training.parties import FirstParty, SecondParty, deal, encode_batch, seed_of_step
from bilateral.protocols.share.training.plain import plain_step
from bilateral.protocols.share.training.roles import Dealing, First, FirstModel, Second
from bilateral.protocols.share.training.script import run
from bilateral.protocols.share.training.sizing import sized
from bilateral.protocols.share.training.terms import ONE, StepTerms

ROOM = 1 << 58
"""A limit that nothing reaches."""


def seed_of(name, number=0):
    """32 bytes for a pair of parties."""
    return f"{name} {number}".encode().ljust(32, b".")


@dataclass
class Step:
    """What a step is made of. `limits`: by default ones that are sized by the batch itself."""

    terms: StepTerms
    layers: tuple[PrivateLayer, ...]
    inputs: Tensor
    targets: Tensor
    limits: dict[str, int] = field(default_factory=dict)
    number: int = 0
    """Of all secrets of the step."""

    @property
    def seeds(self):
        """Of dealer and first, of dealer and second, of first and second."""
        return tuple(seed_of(pair, self.number) for pair in ("dealer first", "dealer second", "first second"))

    @property
    def model(self):
        return FirstModel.of(self.terms, self.layers, self.limits)

    def without_limits(self):
        shape = self.terms.shape_of_step
        labels = [*(label for label, _ in shape.watched), *(norm.label for norm in shape.norms)]
        return replace(self, limits=dict.fromkeys(labels, ROOM))

    def with_weights_times(self, size):
        layers = (PrivateLayer((layer.weight * size).long(), (layer.bias * size).long()) for layer in self.layers)
        return replace(self, layers=tuple(layers))

    def with_limits_of(self, examples, num_clients=3):
        return replace(self, limits=sized(self.terms, self.model, self.layers, examples, num_clients).limits)

    def dealt(self):
        return deal(self.terms, *self.seeds[:2])

    def first(self, dealt=None):
        dealt = self.dealt() if dealt is None else dealt
        return FirstParty(self.terms, self.model, dealt, self.seeds[0], self.seeds[2], dealer="dora")

    def second(self, weights=None):
        weights = self.first().masked_weights() if weights is None else weights
        _, with_dealer, with_first = self.seeds
        return SecondParty(self.terms, weights, with_dealer, with_first, first="the server")

    def take(self, *, whatever_comes=False):
        """`whatever_comes`: a step that ends in an error of range has no result, and was heard all the same."""
        works = self.first().work(), self.second().work(self.inputs, self.targets)
        return converse(*(without_range_errors(work) if whatever_comes else work for work in works))

    def plain(self):
        """The words of the step in the clear, in fixed point."""
        encoded = encode_batch(self.terms, self.inputs, self.targets)
        return plain_step(self.terms, self.model, *encoded, dropout=self.seeds[1])[0]

    def in_float(self):
        """The gradients of all layers, by autograd, in float64."""
        return float_gradients(self)


@dataclass
class Taken:
    """`first`, `second`: parts of the gradient. `told`: (what it is, the words), by each party, in order."""

    first: Tensor
    second: Tensor
    told: tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]]]

    @property
    def words(self):
        return self.first + self.second

    def heard_by(self, party, name):
        """All words of one kind that a party heard, flat."""
        return torch.cat([part.reshape(-1) for what, part in self.told[party == "first"] if what == name])


def watched(work, heard):
    """`work`, with a list of what it hears, by the names it hears it by."""
    answer = None
    while True:
        try:
            wanted = work.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield wanted
        if isinstance(wanted, Hear):
            heard.append((wanted.name, answer.clone()))


def without_range_errors(work):
    try:
        return (yield from work)
    except NumericalRangeError:
        return None


def converse(first, second):
    """Both works to their ends."""
    heard = [], []
    speakers = (
        Speaker(watched(first, heard[0]), "the client"),
        Speaker(watched(second, heard[1]), "the server"),
    )
    while not all(speaker.is_done for speaker in speakers):
        for speaker, other in (speakers, speakers[::-1]):
            other.hear(speaker.take_told(), must_lead=False)
    for speaker in speakers:
        speaker.expect_end()
    return Taken(speakers[0].result, speakers[1].result, (heard[1], heard[0]))


def errors_of_both(step):
    """What each party raises in a step that is to fail, or None."""
    found = [None, None]
    works = [step.first().work(), step.second().work(step.inputs, step.targets)]
    queues, answers, waits = ([], []), [None, None], [None, None]
    done = [False, False]
    while not all(done):
        for me, work in enumerate(works):
            while not done[me]:
                if isinstance(waits[me], Hear):
                    if not queues[me]:
                        break
                    answers[me], waits[me] = queues[me].pop(0), None
                try:
                    wanted = work.send(answers[me])
                except StopIteration:
                    done[me] = True
                except Exception as error:
                    found[me], done[me] = error, True
                else:
                    answers[me] = None
                    if isinstance(wanted, Tell):
                        queues[1 - me].append(wanted.part)
                    else:
                        waits[me] = wanted
    return found


def step_of(model, shape, loss="ce", batch_size=4, *, number=0, factor=ONE, size=1.0, classes=None):
    """A step of a network on random samples, with room for everything. `classes`: targets."""
    trainable = compile_trainable(model, shape)
    terms = StepTerms(trainable.circuit, loss, batch_size, trainable.trains, factor)
    source = generator(1000 + number)
    inputs = (size * torch.randn(batch_size, *shape, generator=source, dtype=torch.float64)).clamp(-900, 900)
    outputs = trainable.circuit.output.size
    targets = torch.randint(outputs, (batch_size,), generator=source) if classes is None else classes
    if loss == "mse":
        targets = torch.randn(batch_size, outputs, generator=source, dtype=torch.float64)
    step = Step(terms, trainable.encode(model), inputs, targets, number=number)
    return step.without_limits()


def tiny_terms(batch_size=4):
    """The terms of a step that nobody takes: some gates alone."""
    return StepTerms(Circuit((1,), (Dense((0,), 1),)), "mse", batch_size, ((True, True),))


def shared(x, seed=0):
    share = uniform_words(tuple(x.shape), 7_000_000 + seed)
    return share, x - share


def by_gates(walk, *values, number=0, shares=None, limits=None):
    """Some gates alone, on values that are shared: `walk(role, *shares)`. `shares`: of first and second, if given."""
    terms = tiny_terms()
    pairs = tuple(seed_of(pair, number) for pair in ("dealer first", "dealer second", "first second"))
    dealer = Dealing(terms, pairs[:2])
    run(walk(dealer, *(torch.empty(value.shape, dtype=torch.int64, device="meta") for value in values)))
    first = First(terms, FirstModel((), (), (), limits or {}), dealer.dealt, pairs[0], pairs[2], "dora")
    second = Second(terms, (), pairs[1], pairs[2])
    if shares is None:
        shares = zip(*(shared(value, place + 10 * number) for place, value in enumerate(values)), strict=True)
    firsts, seconds = shares
    taken = converse(walk(first, *firsts), walk(second, *seconds))
    first.expect_all_used()
    return taken


# The oracle.


def kept_by_dropout(step, index, shape, threshold):
    """Ones and zeros that both parties draw from the seed that they share."""
    stream = Stream.of(seed_of_step(step.terms, step.seeds[1]), "dropout", index, step.terms.batch_size)
    return ((stream.words(*shape) & 0xFFFFF) >= threshold).double()


def float_outputs(step, leaves):
    """The circuit in float64, a step after the other."""
    circuit, layers = step.terms.circuit, iter(leaves)
    values = [step.inputs.double()]
    for index, made_by in enumerate(circuit.steps):
        xs = [values[source] for source in made_by.sources]
        x = xs[0]
        match made_by:
            case Dense():
                y = F.linear(x, *next(layers))
            case Conv():
                y = F.conv2d(x, *next(layers), made_by.stride, made_by.padding, made_by.dilation, made_by.groups)
            case Relu():
                y = F.relu(x)
            case LeakyRelu():
                y = F.leaky_relu(x, made_by.slope * 2.0**-20)
            case MaxPool():
                y = F.max_pool2d(x, made_by.kernel, made_by.stride, made_by.padding)
            case Dropout() | ChannelDropout():
                shape = (*x.shape[:2], 1, 1) if isinstance(made_by, ChannelDropout) else tuple(x.shape)
                y = x * kept_by_dropout(step, index, shape, made_by.threshold) / (1 - made_by.threshold * 2.0**-20)
            case _ if made_by.kind == "avg_pool":
                y = F.avg_pool2d(x, made_by.kernel, made_by.stride, made_by.padding)
            case _ if made_by.kind == "add":
                y = xs[0] + xs[1]
            case _ if made_by.kind == "concat":
                y = torch.cat(xs, 1)
            case _ if made_by.kind == "scale":
                y = x  # the division is in `avg_pool2d`
            case _:
                y = x.reshape(len(x), *made_by.shape)
        values.append(y)
    return values[-1]


def float_gradients(step):
    """Of `factor` times the sum of the samples' losses, by layer: (weights, bias), None where they do not train."""
    circuit, leaves = step.terms.circuit, []
    for source, layer in zip(step.terms.linear_sources, step.layers, strict=True):
        weight = layer.weight.double() * 2.0**-20
        bias = layer.bias.double() * 2.0 ** -(20 + source.fraction_bits)
        leaves.append((weight.requires_grad_(), bias.requires_grad_()))
    outputs = float_outputs(step, leaves)
    if step.terms.loss == "ce":
        loss = F.cross_entropy(outputs, step.targets, reduction="sum")
    else:
        loss = (outputs - step.targets.double()).square().sum() / circuit.output.size
    loss = loss * (step.terms.factor / ONE)
    flat = torch.autograd.grad(loss, [part for pair in leaves for part in pair], allow_unused=True)
    found = []
    for layer, trains in enumerate(step.terms.trains):
        parts = zip(flat[2 * layer : 2 * layer + 2], leaves[layer], trains, strict=True)
        found.append(
            tuple((torch.zeros_like(leaf) if g is None else g) if wanted else None for g, leaf, wanted in parts)
        )
    return found
