"""Streams: the same at both ends, one for each purpose and batch, uniform, and never read twice in one place."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import get_args

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.protocols.mask.injective import injective
from bilateral.protocols.share.ring.packing import from_words, num_words, pack_bits, to_words, unpack_bits
from bilateral.protocols.share.ring.streams import Keystream, Purpose, SessionAgreement, Stream

SEED = bytes(range(32))
NAMED = (("gate", 0), ("gate", 1), ("linear", 0), ("dropout", 2**40))
PURPOSES = ("weights", "input", "linear", "rounding", "comparison", "output")


def keystream(seed, purpose, batch_index, num_bytes, batch_size=0):
    """AES-128 in counter mode in one go."""
    label = injective("bilateral share stream v2", batch_size)
    key = HKDFExpand(SHA256(), 16, label).derive(seed)
    first = bytes([get_args(Purpose).index(purpose)]) + batch_index.to_bytes(8, "big") + bytes(7)
    return Cipher(algorithms.AES(key), modes.CTR(first)).encryptor().update(bytes(num_bytes))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 32767, 32768, 32769, 70001])
def test_words_are_the_counter_mode_of_one_key(count):
    words = Stream.of(SEED, "linear", 3, 0).words(count)
    assert words.dtype == torch.int64
    assert words.numpy().tobytes() == keystream(SEED, "linear", 3, 8 * count)


@given(st.lists(st.tuples(st.sampled_from(["words", "half_words", "packed_bits"]), st.integers(0, 70)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_every_read_goes_on_where_the_last_whole_block_ended(reads):
    stream, position = Stream.of(SEED, "comparison", 0, 0), 0
    everything = keystream(SEED, "comparison", 0, 8192)
    for kind, count in reads:
        found = getattr(stream, kind)(count).numpy().tobytes()
        assert found == everything[position : position + len(found)]
        position += -(-len(found) // 16) * 16


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=2, max_size=20))
@settings(max_examples=40, deadline=None)
def test_streams_that_share_a_cipher_are_read_in_any_order_and_give_what_each_gives_alone(reads):
    shared = Keystream(SEED, 5)
    together = [shared.stream(purpose, index) for purpose, index in NAMED]
    alone = [Stream.of(SEED, purpose, index, 5) for purpose, index in NAMED]
    for which, count in reads:
        assert torch.equal(together[which].words(count), alone[which].words(count))


def test_no_stream_reaches_the_counters_of_another():
    starts = sorted(
        Keystream(SEED, 0).stream(purpose, index)._counter
        for purpose, index in itertools.product(get_args(Purpose), (0, 1, 2, 255, 256, 2**32, 2**63))
    )
    assert min(later - earlier for earlier, later in itertools.pairwise(starts)) >= 2**56  # blocks of 16 bytes
    assert starts[-1] + 2**56 < 2**128


def test_streams_of_other_purposes_batches_and_seeds_have_nothing_in_common():
    seeds = (SEED, bytes(32))
    found = [
        Stream.of(seed, purpose, index, size).words(4)
        for seed, purpose, index, size in itertools.product(seeds, PURPOSES, (0, 1, 2, 11, 2**62), (0, 1, 32))
    ]
    assert len({int(word) for words in found for word in words}) == 4 * len(found)


def test_session_seeds_differ_by_secret_session_role_circuit_and_style():
    secret, other = bytes(32), bytes(31) + b"\1"
    terms = SessionAgreement(b"s" * 16, "anna", "bela", "{}", "hardened")
    seeds = {
        terms.seed(secret),
        terms.seed(other),
        replace(terms, querier="bela", answerer="anna").seed(secret),
        replace(terms, querier="ann", answerer="abela").seed(secret),
        replace(terms, session_id=b"t" * 16).seed(secret),
        replace(terms, circuit="{ }").seed(secret),
        replace(terms, style="published").seed(secret),
    }
    assert len(seeds) == 7


def test_words_and_halves_are_uniform_in_every_bit():
    stream = Stream.of(SEED, "input", 0, 0)
    for words, bits in ((stream.words(200_000), 64), (stream.half_words(200_000), 32)):
        for place in range(bits):
            ones = int(((words >> place) & 1).sum())
            assert abs(ones - 100_000) < 5 * 224  # five standard deviations


@given(st.lists(st.booleans(), max_size=70))
@settings(max_examples=100, deadline=None)
def test_packed_bits_come_back_as_they_were(bits):
    packed = pack_bits(torch.tensor(bits, dtype=torch.bool))
    assert packed.numel() == (len(bits) + 7) // 8
    assert sum(int(byte) << (8 * i) for i, byte in enumerate(packed)) == sum(b << i for i, b in enumerate(bits))
    assert unpack_bits(packed, (len(bits),)).tolist() == bits


@given(st.integers(0, 300), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_bits_travel_in_whole_words_and_what_another_party_puts_behind_them_is_cut_off(count, seed):
    bits = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.5
    packed = pack_bits(bits)
    words = to_words(packed)
    assert (words.dtype, tuple(words.shape)) == (torch.int64, (num_words(count),))
    assert torch.equal(from_words(words, count), packed)
    spoiled = words.clone()
    if count % 64:
        spoiled[-1] |= -1 << (count % 64)
    assert torch.equal(from_words(spoiled, count), packed)
    assert torch.equal(unpack_bits(from_words(spoiled, count), (count,)), bits)
