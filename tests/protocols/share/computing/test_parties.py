"""The core without any casting: a first party with weights, a second, and a dealer who only speaks before."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tests.protocols.share.harness import fill, queries_like, uniform_words
from tests.protocols.share.statistics import assert_uniform
from torch import nn

from bilateral.errors import MalformedMessageError, ProtocolError
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.circuit.plaintext import linear_map, predict
from bilateral.protocols.share.computing.dealer import (
    Dealer,
    DealerSeeds,
    DealtLayers,
    expect_layers,
    expect_tables,
    widths,
)
from bilateral.protocols.share.computing.first import Batch, FirstParty, FirstSeeds, expect_batch, masked_weights
from bilateral.protocols.share.computing.second import SecondParty, SecondSeeds
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED, SEALED, STYLES
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.ring import arithmetic as ring

SHAPE, SIZE = (2, 6, 6), 5
DEALER_FIRST, DEALER_SECOND, FIRST_SECOND = (bytes([seed]) * 32 for seed in (1, 2, 3))
styles = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)


@pytest.fixture(scope="module")
def model():
    layers = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3)
    return compile_model(fill(nn.Sequential(*layers)), queries_like(SHAPE, count=8))


class Parties:
    """All three for one batch. What each other is told is kept."""

    def __init__(self, model, style, index=0, size=SIZE):
        batch, circuit = Batch(index, size), model.circuit
        self.model, self.batch = model, batch
        first_seeds = FirstSeeds(with_dealer=DEALER_FIRST, with_second=FIRST_SECOND)
        self.weights = masked_weights(model, first_seeds)
        maps = [linear_map(step, weight) for step, weight in zip(circuit.linear_steps, self.weights, strict=True)]
        self.dealer = Dealer(circuit, style, DealerSeeds(DEALER_FIRST, DEALER_SECOND))
        self.first = FirstParty(model, style, first_seeds, batch)
        seeds = SecondSeeds(with_dealer=DEALER_SECOND, with_first=FIRST_SECOND)
        self.second = SecondParty(circuit, maps, style, seeds, batch, "the dealer")
        self.judging = self.dealer.judging(batch)
        self.num_judged = 0
        self.told = [], []

    def compute(self, x, shares=1):
        """Shares of the circuit's output for shares of x."""
        self.second.multiply()
        bits = self.second.combine(self.dealer.deal_layers(self.batch))
        self.second.take_tables(self.dealer.deal_comparisons(self.batch))
        share = uniform_words(x.shape, shares)
        first, second = Speaker(self.first.evaluate(share), "second"), Speaker(self.second.evaluate(x - share), "first")
        first.hear(bits, must_lead=False)
        self.told[1].extend(bits)
        while not (first.is_done and second.is_done):
            for speaker, other, log in ((second, first, self.told[1]), (first, second, self.told[0])):
                while speaker.judge is not None:
                    self.num_judged += 1
                    found = self.judging.judge(speaker.judge.values, "the second party")
                    speaker.told_by_judge(found.product, found.bit)
                parts = speaker.take_told()
                log.extend(parts)
                other.hear(parts, must_lead=False)
        return first.result, second.result


def logits(model, shares):
    return ring.decode(sum(shares), model.circuit.output.fraction_bits) / model.circuit.output.divisor


@styles
def test_two_parties_and_a_dealer_compute_a_circuit_whoever_plays_which_part(model, style):
    queries = queries_like(SHAPE, count=SIZE)
    parties = Parties(model, style)
    shares = parties.compute(ring.encode(queries, FRACTION_BITS))
    assert (logits(model, shares) - predict(model, queries)).abs().max() < 2**-12
    assert parties.num_judged == (len(model.circuit.comparisons) if style.is_judged else 0)


@styles
def test_each_share_of_the_output_alone_is_uniform(model, style):
    found = []
    for index in range(40):
        parties = Parties(model, style, index, size=30)
        found.append(parties.compute(ring.encode(queries_like(SHAPE, count=30), FRACTION_BITS), shares=2 + index))
    for share in zip(*found, strict=True):
        assert_uniform(torch.cat([part.reshape(-1) for part in share]))


def test_dealings_of_two_batches_have_nothing_in_common(model):
    dealer = Dealer(model.circuit, SEALED, DealerSeeds(DEALER_FIRST, DEALER_SECOND))
    first, second, larger = (all_dealt(dealer, batch) for batch in (Batch(0, 64), Batch(1, 64), Batch(0, 128)))
    for other in (second, larger):
        for name in ("products", "carries", "comparisons"):
            for a, b in zip(getattr(first, name), getattr(other, name), strict=True):
                count = min(a.numel(), b.numel())
                if count >= 1024:
                    assert_uniform(a.reshape(-1)[:count] - b.reshape(-1)[:count])


@pytest.mark.parametrize("style", [HARDENED, PUBLISHED], ids=lambda style: style.name)
def test_a_judging_dealer_deals_nothing_for_comparisons(model, style):
    assert widths(model.circuit, style, 3) == []
    dealer = Dealer(model.circuit, style, DealerSeeds(DEALER_FIRST, DEALER_SECOND))
    assert dealer.deal_comparisons(Batch(0, 3)) == ()


def test_a_sealed_dealer_judges_nothing(model):
    judging = Dealer(model.circuit, SEALED, DealerSeeds(DEALER_FIRST, DEALER_SECOND)).judging(Batch(0, 3))
    with pytest.raises(ProtocolError, match="asked for more comparisons than are judged"):
        judging.judge(torch.zeros(3, model.circuit.comparisons[0].size, dtype=torch.int64), "mallory")


@dataclass(frozen=True)
class AllDealt:
    products: tuple
    carries: tuple
    comparisons: tuple


def all_dealt(dealer, batch):
    layers = dealer.deal_layers(batch)
    return AllDealt(layers.products, layers.carries, dealer.deal_comparisons(batch))


def taken(second, dealt):
    second.combine(DealtLayers(dealt.products, dealt.carries))
    second.take_tables(dealt.comparisons)


def expect_dealt(dealt, circuit, style, size):
    expect_layers("deana", DealtLayers(dealt.products, dealt.carries), circuit, size)
    expect_tables("deana", dealt.comparisons, circuit, style, size)


SPOILED = {
    "no products": lambda d: replace(d, products=()),
    "a product less": lambda d: replace(d, products=d.products[:-1]),
    "a product of another shape": lambda d: replace(d, products=(d.products[0][:, :1], *d.products[1:])),
    "products of another type": lambda d: replace(d, products=tuple(p.double() for p in d.products)),
    "carries of another type": lambda d: replace(d, carries=tuple(p.long() for p in d.carries)),
    "carries less": lambda d: replace(d, carries=d.carries[1:]),
    "no comparisons": lambda d: replace(d, comparisons=()),
    "one tensor of a comparison": lambda d: replace(d, comparisons=d.comparisons[:-1]),
    "comparisons in another order": lambda d: replace(d, comparisons=d.comparisons[::-1]),
    "a table cut off": lambda d: replace(d, comparisons=(d.comparisons[0][:-1], *d.comparisons[1:])),
    "a table too wide": lambda d: replace(d, comparisons=(d.comparisons[0].repeat(1, 2), *d.comparisons[1:])),
    "comparisons of another type": lambda d: replace(d, comparisons=tuple(p.int() for p in d.comparisons)),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_was_not_dealt_for_this_circuit_and_batch_is_refused_by_the_dealers_name(model, what):
    parties = Parties(model, SEALED)
    parties.second.multiply()
    with pytest.raises(MalformedMessageError, match="from the dealer: expected"):
        taken(parties.second, SPOILED[what](all_dealt(parties.dealer, parties.batch)))


@pytest.mark.parametrize("other", [HARDENED, SEALED], ids=lambda style: style.name)
def test_what_was_dealt_for_another_style_size_or_range_is_refused(model, other):
    seeds = DealerSeeds(DEALER_FIRST, DEALER_SECOND)
    dealt = all_dealt(Dealer(model.circuit, other, seeds), Batch(0, SIZE))
    expect_dealt(dealt, model.circuit, other, SIZE)
    style = SEALED if other is HARDENED else HARDENED
    with pytest.raises(MalformedMessageError, match="from deana"):
        expect_dealt(dealt, model.circuit, style, SIZE)
    with pytest.raises(MalformedMessageError, match="from deana"):
        expect_dealt(dealt, model.circuit, other, SIZE + 1)
    if other is SEALED:
        with pytest.raises(MalformedMessageError, match="from deana"):
            expect_dealt(dealt, replace(model.circuit, value_bits=8), other, SIZE)


@pytest.mark.parametrize("size", [0, -1, 2**40])
def test_a_batch_has_one_sample_or_more_and_fits_in_memory(model, size):
    with pytest.raises(ProtocolError, match=f"deana began a batch of {size} queries"):
        expect_batch("deana", model.circuit, size)
    expect_batch("deana", model.circuit, 1)
    expect_batch("deana", model.circuit, model.circuit.largest_batch)
