"""The papers' real-valued masks beside masks modulo 2^64: ledger line 6, carried out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from tests.protocols.mask.harness import MODEL, NAMES, RUN, Group, key_rings, upload_of

from bilateral.errors import PlanError, ProtocolError
from bilateral.protocols.mask.float_masks import FloatMaskClient, gaussian
from bilateral.protocols.mask.guarantee import float_mask_guarantee, guarantee
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.messages import Upload, aggregate

torch.set_num_threads(1)
FOUR = NAMES[:4]


def float_clients(scale, names=FOUR, **options):
    rings = key_rings(names)
    directory = KeyDirectory(RUN, names)
    for name, ring in rings.items():
        directory.register(name, ring.announce())
    for ring in rings.values():
        ring.accept(directory.roster())
    return {name: FloatMaskClient(ring, scale, MaskSettings(), **options) for name, ring in rings.items()}


def masked_by_floats(uploads, scale, round_index=0, **options):
    clients = float_clients(scale, tuple(uploads), **options)
    return {name: clients[name].mask(upload, round_index, tuple(uploads)) for name, upload in uploads.items()}


def relative_error(got, expected):
    return float((got - expected).norm() / expected.norm())


def some_uploads(parameters=2000, size=1.0):
    return {
        name: upload_of(0, number, parameters=parameters, size=size, dtype=torch.float64)
        for number, name in enumerate(FOUR)
    }


@pytest.mark.parametrize("options", [{}, {"one_mask_for_all_terms": True}])
def test_float_masks_cancel_in_the_weighted_sum_of_all(options):
    uploads = some_uploads()
    masked = masked_by_floats(uploads, 1.0, **options)
    got, plain = aggregate(masked, 0), aggregate(uploads, 0)
    assert relative_error(got.terms, plain.terms) < 1e-14
    assert relative_error(got.statistics, plain.statistics) < 1e-14
    assert relative_error(masked["anna"].terms * uploads["anna"].weight, plain.terms) > 0.1


def test_line_6_a_server_tells_two_gradients_apart_by_magnitude():
    """Masks of scale 1 a pair: one client's gradient is either small or large, and the server guesses which."""
    right = 0
    for trial in range(40):
        is_large = trial % 2 == 1
        uploads = {name: Upload(0, 8, torch.zeros(1, 30).double(), torch.zeros(1)) for name in FOUR}
        uploads["anna"] = Upload(0, 8, torch.full((1, 30), 1.0 if is_large else 0.1).double(), torch.zeros(1))
        clients = float_clients(1.0)
        seen = clients["anna"].mask(Upload(trial, 8, uploads["anna"].terms, torch.zeros(1)), trial, FOUR)
        # The server's slice: one masked upload, its weight and the public scale.
        guess = float((seen.weight * seen.terms).abs().mean()) > 4.0
        right += guess == is_large
    assert right == 40


def test_line_6_masks_modulo_2_64_do_not_let_the_same_server_tell():
    """The same guess on ring masks: the mean size of the masked values does not depend on the gradient."""
    sizes = []
    for value in (0.1, 1.0):
        group = Group(FOUR)
        group.share(group.server.open_round(0, FOUR, 2), FOUR)
        group.route()
        masked = group.clients["anna"].mask(Upload(0, 8, torch.full((1, 20_000), value), torch.zeros(1)), context=MODEL)
        sizes.append(masked.values.double().abs().mean() / 2.0**63)
    assert all(abs(float(size) - 0.5) < 0.01 for size in sizes)


def test_line_6_float_masks_lose_digits_as_they_hide_more_and_ring_masks_lose_none():
    uploads = some_uploads()
    plain = aggregate(uploads, 0)
    errors = [
        relative_error(aggregate(masked_by_floats(uploads, scale), 0).terms, plain.terms) for scale in (1e2, 1e6, 1e10)
    ]
    assert errors[1] > 1e3 * errors[0]
    assert errors[2] > 1e3 * errors[1]
    assert errors[2] > 1e-8
    ring, _ = Group(FOUR).run(0, uploads)
    assert relative_error(ring.terms, plain.terms) < 1e-11


def test_line_6_as_published_differences_of_terms_carry_no_mask_at_all():
    """P0 eq. 27 adds the same mask to every term of a client."""
    uploads = some_uploads()
    published = masked_by_floats(uploads, 100.0, one_mask_for_all_terms=True)["anna"].terms
    plain = uploads["anna"].terms
    assert relative_error(published[0] - published[1], plain[0] - plain[1]) < 1e-12
    ours = masked_by_floats(uploads, 100.0)["anna"].terms
    assert relative_error(ours[0] - ours[1], plain[0] - plain[1]) > 1


def test_one_client_that_drops_spoils_the_sum_of_float_masks():
    uploads = some_uploads()
    masked = masked_by_floats(uploads, 1000.0)
    del masked["dora"]
    left = {name: upload for name, upload in uploads.items() if name != "dora"}
    assert relative_error(aggregate(masked, 0).terms, aggregate(left, 0).terms) > 1


def test_mask_numbers_are_standard_normal_and_independent_between_rows():
    first, second = gaussian(b"k" * 32, 0, 20_001).numpy(), gaussian(b"k" * 32, 1, 20_001).numpy()
    assert len(first) == 20_001
    assert kstest(first, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_a_float_mask_is_used_once_and_among_known_clients_only():
    client = float_clients(1.0)["anna"]
    upload = upload_of(2)
    for wrong in (FOUR[1:], ("anna",), ("anna", "zora"), ("anna", "anna", "bela")):
        with pytest.raises(ProtocolError, match="anna: participants of round 2"):
            client.mask(upload, 2, wrong)
    client.mask(upload, 2, FOUR)
    for round_index in (2, 1):
        with pytest.raises(ProtocolError, match="anna: an upload of round"):
            client.mask(upload, round_index, FOUR)
    with pytest.raises(PlanError, match="scale"):
        float_clients(0.0)


def test_the_guarantees_name_their_ledger_lines():
    stated = guarantee(MaskSettings(), 10)
    assert [claim.whom for claim in stated.claims] == ["server", "server", "clients"]
    assert [leak.ledger_line for leak in stated.leaks] == [11, 12]
    floats = float_mask_guarantee(3.0)
    assert not floats.claims
    assert [leak.ledger_line for leak in floats.leaks] == [6, 12]
