"""What the server sees of one client: numbers that are uniform on the ring, whatever it uploads, and always fresh."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest
from tests.protocols.mask.harness import BEFORE_UPLOAD, MODEL, NAMES, RUN, Group, sent, upload_of

from bilateral.errors import AuthenticationError, CheckpointError, NumericalRangeError, ProtocolError
from bilateral.protocols.mask.messages import MaskedUpload, RangeRefusal
from bilateral.protocols.mask.prg import add_masks, bound_seed
from bilateral.protocols.mask.sealing import Occasion, make_escrow, open_escrow, seed_digest, share_digest
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.unmasking import _reconstructed
from bilateral.protocols.messages import Upload, aggregate

torch.set_num_threads(1)
LENGTH = 40_000
GRADIENTS = {
    "zero": torch.zeros(1, LENGTH),
    "huge": torch.full((1, LENGTH), 2.0**19),
    "structured": torch.arange(LENGTH).remainder(3).sub(1.0)[None] * 1e-3,
}


def masked(group, round_index, uploads):
    """All masked uploads of one attempt, as the server gets them."""
    opening = group.server.open_round(round_index, group.names, len(next(iter(uploads.values())).terms) + 1)
    group.share(sent(opening), group.names)
    group.route()
    return {name: group.clients[name].mask(uploads[name], context=MODEL) for name in group.names}


@pytest.mark.parametrize("kind", GRADIENTS)
def test_a_masked_upload_is_uniform_on_the_ring_whatever_the_gradient(kind):
    group = Group(NAMES[:3])
    uploads = {name: Upload(0, 1, GRADIENTS[kind], torch.zeros(1)) for name in group.names}
    values = masked(group, 0, uploads)["anna"].values.numpy()
    counts = np.bincount(values.view(np.uint8), minlength=256)
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert chi2.sf(statistic, 255) > 1e-4
    assert kstest(values.view(np.uint64) / 2.0**64, "uniform").pvalue > 1e-4


def test_two_uploads_of_the_same_gradient_are_independent():
    """Different rounds, attempts and rows have different masks: differences are uniform too, not zero."""
    group = Group(NAMES[:3])
    upload = torch.ones(2, LENGTH)
    first = masked(group, 0, {name: Upload(0, 1, upload, torch.zeros(1)) for name in group.names})["anna"].values
    second = masked(group, 1, {name: Upload(1, 1, upload, torch.zeros(1)) for name in group.names})["anna"].values
    again = masked(group, 1, {name: Upload(1, 1, upload, torch.zeros(1)) for name in group.names})["anna"].values
    rows = first[: 2 * LENGTH].reshape(2, LENGTH)
    for one, other in ((first, second), (second, again), (rows[0], rows[1])):
        difference = (one - other).numpy().view(np.uint64)
        assert kstest(difference / 2.0**64, "uniform").pvalue > 1e-4


def test_the_self_mask_hides_an_upload_from_a_server_that_knows_all_pair_seeds():
    """A client that seemed to have dropped: its escrow is open, its upload comes late. It is still uniform."""
    group = Group(NAMES[:3])
    uploads = {name: Upload(0, 1, torch.zeros(1, LENGTH), torch.zeros(1)) for name in group.names}
    late = masked(group, 0, uploads)["anna"].values.numpy().copy()
    attempt = group.clients["anna"]._attempt
    pair_masks = [
        (bound_seed(seed, MODEL), -1) for seed in attempt.pair_seeds.values()
    ]  # anna's name comes first: all her signs are +
    add_masks(late, pair_masks, [LENGTH, 2])
    assert kstest(late.view(np.uint64) / 2.0**64, "uniform").pvalue > 1e-4
    add_masks(late, [(attempt.self_seed, -1)], [LENGTH, 2])
    assert not late[:-1].any()  # the test removes the right masks


def test_the_sum_is_that_of_the_plain_uploads_and_weights_stay_hidden_inside_it():
    group = Group(NAMES[:5])
    uploads = {name: upload_of(0, number, dtype=torch.float64) for number, name in enumerate(group.names)}
    got, opening = group.run(0, uploads)
    plain = aggregate(uploads, 0)
    tolerance = 5 * 2.0 ** -min(opening.fraction_bits)
    torch.testing.assert_close(got.terms, plain.terms, rtol=1e-15, atol=tolerance)
    torch.testing.assert_close(got.statistics, plain.statistics, rtol=1e-15, atol=tolerance)
    assert got.total_weight == plain.total_weight


def test_the_escrow_key_of_one_round_opens_no_other_round():
    """One key agreement a run: what is revealed about a client that dropped in round 0 does not help in round 1."""
    group = Group(NAMES[:4], MaskSettings(threshold=0.6))
    escrows, seeds, keys, occasions = [], [], [], []
    for round_index in range(2):
        opening = group.server.open_round(round_index, group.names, 3)
        group.share(opening, group.names)
        record = group.server._record
        group.route()
        group.upload({name: upload_of(round_index) for name in group.names}, group.names[1:])
        group.sign()
        group.reveal()
        seeds.append(dict(group.clients["anna"]._attempt.pair_seeds))
        keys.append(_reconstructed(record)["anna"])
        escrows.append(record.sealed["anna"].escrow)
        occasions.append(record.occasion)
        group.server.unmask((2, 5), 3)
    for r in range(2):  # each key opens its own round
        assert open_escrow(occasions[r], "anna", keys[r], escrows[r], group.names[1:]) == seeds[r]
    with pytest.raises(AuthenticationError, match="escrow of anna"):
        open_escrow(occasions[1], "anna", keys[0], escrows[1], group.names[1:])
    assert not set(seeds[0].values()) & set(seeds[1].values())


def test_escrows_and_commitments_are_bound_to_run_round_attempt_opening_and_owner():
    """Even under one and the same key."""
    here = Occasion(RUN, 3, 1, b"opening")
    escrow = make_escrow(here, "anna", bytes(32), [b"s" * 32])
    assert open_escrow(here, "anna", bytes(32), escrow, ["bela"]) == {"bela": b"s" * 32}
    for change in ({"run_id": b"other"}, {"round_index": 4}, {"attempt": 2}, {"opening_digest": b"another"}):
        occasion = replace(here, **change)
        with pytest.raises(AuthenticationError, match="escrow of anna"):
            open_escrow(occasion, "anna", bytes(32), escrow, ["bela"])
        assert seed_digest(occasion, "anna", bytes(32)) != seed_digest(here, "anna", bytes(32))
        digests = [share_digest(place, "self", "anna", "bela", bytes(33)) for place in (occasion, here)]
        assert digests[0] != digests[1]
    with pytest.raises(AuthenticationError, match="escrow of cleo"):
        open_escrow(here, "cleo", bytes(32), escrow, ["bela"])


def test_a_value_out_of_range_gets_another_attempt_with_fresh_masks_and_the_right_sum():
    group = Group(NAMES[:3], MaskSettings(initial_bound_bits=4))
    uploads = {name: upload_of(0, number, weight=1) for number, name in enumerate(group.names)}
    uploads["bela"] = upload_of(0, 1, weight=1, size=1000.0)
    group.share(group.server.open_round(0, group.names, 3), group.names)
    group.route()
    first = group.clients["anna"].mask(uploads["anna"], context=MODEL)
    refusal = group.clients["bela"].mask(uploads["bela"], context=MODEL)
    assert isinstance(first, MaskedUpload)
    assert isinstance(refusal, RangeRefusal)
    group.server.collect_upload("anna", first)
    group.server.collect_upload("bela", refusal)
    group.server.collect_upload("cleo", group.clients["cleo"].mask(uploads["cleo"], context=MODEL))
    assert group.server.refused
    opening = group.server.retry()
    assert (opening.round_index, opening.attempt) == (0, 1)
    group.share(opening, group.names)
    group.route()
    again = {name: group.clients[name].mask_again() for name in group.names}
    assert float((again["anna"].values == first.values).double().mean()) < 0.1
    for name, message in again.items():
        group.server.collect_upload(name, message)
    group.sign()
    group.reveal()
    got = group.server.unmask((2, 5), 3)
    torch.testing.assert_close(got.terms, aggregate(uploads, 0).terms, rtol=0, atol=2000 * 2.0**-21)


def test_bounds_follow_the_sums_and_a_resumed_server_has_the_same():
    group = Group(NAMES[:3])
    uploads = {name: upload_of(0, number) for number, name in enumerate(group.names)}
    total, first = group.run(0, uploads)
    resumed = Group(NAMES[:3])
    resumed.server.load_state_tensors(group.server.state_tensors())
    following = group.server.open_round(1, group.names)
    assert following == resumed.server.open_round(1, group.names)
    assert following.fraction_bits != first.fraction_bits
    for row, bits in zip([*total.terms, total.statistics], following.fraction_bits, strict=True):
        bound = 2.0 ** (62 - 2 - bits)
        assert bound / 2 < 256 * float(row.abs().max()) <= bound


@pytest.mark.parametrize("kept", [(), ("latest",), ("bound_bits",)])
def test_a_state_with_a_part_missing_is_refused_and_changes_nothing(kept):
    group = Group(NAMES[:3])
    group.run(0, {name: upload_of(0) for name in group.names})
    state = group.server.state_tensors()
    with pytest.raises(CheckpointError, match="bound_bits, latest; got"):
        group.server.load_state_tensors({name: state[name] for name in kept})
    with pytest.raises(CheckpointError):
        group.server.load_state_tensors({**state, "latest": state["latest"][:2]})
    assert group.server.open_round(1, group.names).attempt == 0


def test_fixed_bounds_are_never_adapted_and_nobody_refuses_for_range():
    group = Group(NAMES[:4], MaskSettings(threshold=0.6), fixed_bounds=[2.0, 2.0, 4.0])
    uploads = {name: upload_of(0, number, size=0.01) for number, name in enumerate(group.names)}
    uploads["bela"] = upload_of(0, 1, size=100.0)
    opening = group.server.open_round(0, group.names)
    group.share(opening, group.names)
    group.route()
    with pytest.raises(
        NumericalRangeError, match=r"^Upload from bela: a value is beyond the fixed bounds of this run\."
    ):
        group.clients["bela"].mask(uploads["bela"], context=MODEL)
    with pytest.raises(NumericalRangeError, match="from bela: the bounds of this run are fixed"):
        group.server.collect_upload("bela", RangeRefusal(0, 0, (0,), (9,)))
    group.upload(uploads, ["anna", "cleo", "dora"])
    group.sign()
    group.reveal()
    assert group.server.unmask((2, 5), 3).contributors == ("anna", "cleo", "dora")
    assert group.server.open_round(1, group.names).fraction_bits == opening.fraction_bits


def test_with_seeded_randomness_a_repeated_run_is_the_same_and_clients_differ():
    """Clients that are given one and the same stream still have secrets of their own."""
    runs = [masked(Group(NAMES[:3], seed=5), 0, dict.fromkeys(NAMES[:3], upload_of(0))) for _ in range(2)]
    assert all(torch.equal(runs[0][name].values, runs[1][name].values) for name in NAMES[:3])
    group = Group(NAMES[:3], seed=5)
    group.share(group.server.open_round(0, group.names, 3), group.names)
    assert len({client._attempt.self_seed for client in group.clients.values()}) == 3


def test_nothing_secret_shows_in_the_repr_of_clients_servers_and_messages():
    group = Group(NAMES[:3])
    group.share(group.server.open_round(0, group.names, 3), group.names)
    group.route()
    client = group.clients["anna"]
    shown = repr(client) + repr(client._attempt) + repr(client._attempt.shares) + repr(group.server)
    for secret in (client._attempt.self_seed, *client._attempt.pair_seeds.values()):
        assert repr(secret)[2:20] not in shown
        assert secret.hex() not in shown


def test_dropping_after_the_shares_costs_nothing_but_that_client():
    group = Group(NAMES[:4])
    uploads = {name: upload_of(0, number) for number, name in enumerate(group.names)}
    got, _ = group.run(0, uploads, ({"cleo": BEFORE_UPLOAD},))
    left = {name: upload for name, upload in uploads.items() if name != "cleo"}
    torch.testing.assert_close(got.terms, aggregate(left, 0).terms, rtol=0, atol=1e-4)
    assert got.contributors == ("anna", "bela", "dora")


def test_uploads_of_another_length_are_refused_at_once_where_the_length_is_known():
    group = Group(NAMES[:4], MaskSettings(threshold=0.6))
    uploads = {name: upload_of(0, number) for number, name in enumerate(group.names)}
    uploads["bela"] = upload_of(0, 1, parameters=6)
    for num_values in (14, None):
        opening = group.server.open_round(0, group.names, 3, num_values)
        group.share(opening, group.names)
        group.route()
        if num_values is not None:
            with pytest.raises(ProtocolError, match=r"from bela: expected `values` of shape \(14,\), got \(16,\)"):
                group.upload(uploads, ["anna", "bela"])
            continue
        group.upload({**uploads}, group.names)
        with pytest.raises(ProtocolError, match="from bela: expected 14 values as from most clients, got 16"):
            group.server.close_uploads(context=MODEL)
        group.sign()
        group.reveal()
        assert group.server.unmask((2, 5), 3).contributors == ("anna", "cleo", "dora")
