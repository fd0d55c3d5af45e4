"""The compiled loops compute exactly what the tensor expressions compute."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bilateral.protocols.share.gates import judged, truncation
from bilateral.protocols.share.gates.judged import Blinding, judge, odd_inverse
from bilateral.protocols.share.gates.shuffling import random_orders
from bilateral.protocols.share.gates.styles import HARDENED
from bilateral.protocols.share.ring.packing import pack_bits, unpack_bits
from bilateral.protocols.share.ring.streams import Stream

EXTREMES = torch.tensor([0, 1, -1, 2**62, -(2**62), 2**63 - 1, -(2**63), 2**32, -(2**32)])


def ring_values(generator: torch.Generator, *shape: int) -> Tensor:
    """Uniform ring elements, with some extremes among them."""
    drawn = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator)
    flat = drawn.reshape(-1)
    places = torch.randint(0, max(1, flat.numel()), (min(flat.numel(), len(EXTREMES)),), generator=generator)
    flat[places] = EXTREMES[: len(places)]
    return drawn


def random_bits(generator: torch.Generator, count: int) -> Tensor:
    return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)


def small_products(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, generator=generator, dtype=torch.int32)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), batch=st.integers(1, 3), size=st.integers(1, 70), fraction_bits=st.integers(16, 30))
def test_fused_blinding_is_the_tensor_blinding(seed, batch, size, fraction_bits):
    generator = torch.Generator().manual_seed(seed)
    stream = Stream.of(seed.to_bytes(32, "little"), "comparison", 0, 0)
    fast = Blinding.draw(stream, (batch, size), fraction_bits, HARDENED)
    share, addend, product, bit = (ring_values(generator, batch, size) for _ in range(4))
    slow_first = fast._reorder(fast.signs * (fast.factors * share + fast.offsets)) + addend
    assert torch.equal(fast.blind_first(share, addend), slow_first)
    assert torch.equal(fast.blind_second(share, addend), fast._reorder(fast.signs * fast.factors * share) + addend)
    kept = fast.signs * fast._restore(product) - fast.offsets * fast._restore(bit)
    kept *= odd_inverse(fast.factors)
    assert torch.equal(fast.select(share, product, bit), torch.where(fast.signs > 0, kept, share - kept))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 100))
def test_fused_judgement_is_the_tensor_judgement(seed, size):
    generator = torch.Generator().manual_seed(seed)
    masked, mask, product_share, bit_share = (ring_values(generator, 2, size) for _ in range(4))
    mask[0, 0] = masked[0, 0]  # a difference of zero is not positive
    found = judge(masked, mask, product_share, bit_share)
    positive = (masked - mask > 0).to(torch.int64)
    assert torch.equal(found.product, positive * (masked - mask) - product_share)
    assert torch.equal(found.bit, positive - bit_share)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(1, 1), (3, 7), (2, 3, 1, 1), (1, 2, 3, 5), (2, 4, 4, 4)]),
    shift=st.integers(1, 32),
)
def test_fused_truncation_is_the_tensor_truncation(seed, shape, shift):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.tensor(shape).prod())
    y, mask, dealt = (ring_values(generator, *shape) for _ in range(3))
    bias = ring_values(generator, shape[1])
    alpha, beta, epsilon, delta = (random_bits(generator, count).reshape(shape) for _ in range(4))
    product = small_products(generator, *shape)
    spread = bias.reshape(-1, *(1 for _ in shape[2:]))

    share, told = truncation.finish_first(y, mask, bias, shift, pack_bits(alpha), product, pack_bits(epsilon))
    slow_share, slow_told = truncation.first_share(y - mask + spread, shift, alpha, product, epsilon)
    assert torch.equal(share, slow_share)
    assert torch.equal(unpack_bits(told, shape), slow_told)

    first, told = truncation.start_second(y.clone(), dealt, pack_bits(beta))
    assert torch.equal(first, y - dealt)
    assert torch.equal(unpack_bits(told, shape), truncation.second_bit(y - dealt) ^ beta)

    helped = truncation.finish_second(y, shift, pack_bits(beta), product, pack_bits(delta), pack_bits(epsilon))
    assert torch.equal(helped, truncation.second_share(y, shift, beta, product, delta, epsilon))

    given_out = truncation.deal(pack_bits(alpha), pack_bits(beta), product)
    assert torch.equal(given_out, truncation.dealt_share(alpha, beta, product))


def test_packed_bits_end_in_zeros():
    """Otherwise the masks of bits that are not there would be told."""
    y = torch.full((1, 3), -1)
    beta = torch.tensor([0xFF], dtype=torch.uint8)
    _, epsilon = truncation.start_second(y, torch.zeros_like(y), beta)
    assert int(epsilon[0]) < 8


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 300))
def test_random_orders_are_permutations(seed, size):
    orders = random_orders(Stream.of(seed.to_bytes(32, "little"), "comparison", 1, 0), 2, size)
    assert torch.equal(orders.sort(1).values, torch.arange(size).expand(2, size))


def test_random_orders_are_uniform():
    """All 24 orders of four elements, with the same frequency (chi-squared with 23 degrees: 60 is 4e-5)."""
    orders = random_orders(Stream.of(bytes(32), "comparison", 2, 0), 24000, 4)
    codes = (orders * torch.tensor([64, 16, 4, 1])).sum(1)
    _, counts = codes.unique(return_counts=True)
    assert len(counts) == 24
    assert float(((counts - 1000.0) ** 2 / 1000).sum()) < 60


def test_offsets_and_their_mirror_images_are_equally_likely():
    """The proof that signs stay hidden rests on it, so it holds word by word, not only on average."""
    words = torch.randint(-(2**63), 2**63 - 1, (10_000,), generator=torch.Generator().manual_seed(1))
    factors = judged._factors(words, 30, True)
    other = words ^ 1
    assert torch.equal(judged._offsets(words, factors) + judged._offsets(other, factors), factors)
    assert bool((judged._offsets(words, factors) >= 1).all())
    assert bool((judged._offsets(words, factors) < factors).all())
