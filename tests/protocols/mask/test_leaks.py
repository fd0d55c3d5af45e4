"""What ring masks do not hide, carried out (ledger lines 11 and 12). Each attack sees the server's slice only."""

from __future__ import annotations

import math

import torch
from tests.protocols.mask.harness import BEFORE_UPLOAD, MODEL, NAMES, Group, upload_of

from bilateral.protocols.mask.messages import RangeRefusal
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.messages import Upload

torch.set_num_threads(1)


def test_line_11_a_refusal_tells_the_server_the_size_of_a_row_to_a_factor_of_two():
    group = Group(NAMES[:3], MaskSettings(initial_bound_bits=2))
    secret = upload_of(0, 5, weight=7, size=30.0)
    group.share(group.server.open_round(0, group.names, 3), group.names)
    group.route()
    seen = group.clients["anna"].mask(secret, context=MODEL)
    assert isinstance(seen, RangeRefusal)
    rows = [*secret.terms, secret.statistics]
    for row, bits in zip(seen.rows, seen.bound_bits, strict=True):
        assert bits == math.ceil(math.log2(secret.weight * float(rows[row].abs().max())))
    assert seen.rows == (0, 1, 2)


def test_line_12_two_sums_over_different_clients_show_the_upload_of_the_one_who_left():
    """The same gradients in two rounds (a late stage of training is close to it), once with dora and once without."""
    group = Group(NAMES[:4])
    uploads = {name: upload_of(0, number) for number, name in enumerate(group.names)}
    first, _ = group.run(0, uploads)
    again = {name: Upload(1, u.weight, u.terms, u.statistics) for name, u in uploads.items()}
    second, _ = group.run(1, again, ({"dora": BEFORE_UPLOAD},))
    # The server's slice: two sums, and who was in them.
    assert set(first.contributors) - set(second.contributors) == {"dora"}
    weight = first.total_weight - second.total_weight
    read = (first.terms - second.terms) / weight
    assert weight == uploads["dora"].weight
    torch.testing.assert_close(read, uploads["dora"].terms.double(), rtol=0, atol=1e-4)


def test_line_12_total_weights_of_sums_over_different_clients_tell_every_weight():
    """As many rounds as clients, each over another set: the totals are a linear system for the weights."""
    group = Group(NAMES[:5])
    weights = {name: 200 + 17 * number for number, name in enumerate(group.names)}
    sets, totals = [], []
    for number, absent in enumerate(group.names):
        uploads = {name: upload_of(number, number, weight=weights[name]) for name in group.names}
        total, _ = group.run(number, uploads, ({absent: BEFORE_UPLOAD},))
        sets.append([float(name in total.contributors) for name in group.names])
        totals.append(float(total.total_weight))
    found = torch.linalg.solve(torch.tensor(sets).double(), torch.tensor(totals).double())
    assert found.round().int().tolist() == list(weights.values())
