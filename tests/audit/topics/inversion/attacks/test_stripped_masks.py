"""Ring masks taken off by those who know them: what is left is the upload, or as random as before."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.recording import record
from bilateral.audit.threat import client_view, eavesdropper_view, server_view
from bilateral.audit.topics.inversion.attacks.stripped_masks import stripped_upload
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.protocols.mask.messages import MaskOpening, Roster
from bilateral.protocols.messages import Upload

NAMES = ("client-1", "client-2", "client-3", "client-4")
SMALL = {"model.name": "mlp-3", "training.rounds": 1, "training.batch_size": 4, "federation.clients": len(NAMES)}
VICTIM = NAMES[0]


def run(**settings):
    plan = RunPlan().with_settings({**SMALL, **settings})
    return record(plan, load_federation(plan))


@pytest.fixture(scope="module")
def masked():
    return run()


@pytest.fixture(scope="module")
def plain():
    """What the victim uploads, times its weight."""
    (_, upload), *_ = server_view(run(**{"aggregation.masks": "none"})).messages(Upload, sender=VICTIM)
    return upload.terms.double() * upload.weight


def rings(recording, names):
    secrets = SimulatedSecrets(recording.plan.seed, NAMES)
    found = {name: secrets.key_ring(name) for name in names}
    (_, roster), *_ = server_view(recording).messages(Roster)
    for ring in found.values():
        ring.accept(roster)
    return found


def stripped(recording, colluders):
    return stripped_upload(server_view(recording, colluders), 0, VICTIM, rings(recording, colluders)).terms


def test_stripping_gives_the_upload_but_for_its_last_bits_if_all_partners_collude(masked, plain):
    opening = server_view(masked).message(MaskOpening, round_index=0)
    units = torch.tensor([2.0**-bits for bits in opening.fraction_bits[:-1]], dtype=torch.float64)
    error = (stripped(masked, NAMES[1:]) - plain).abs()
    assert bool((error <= units[:, None] + 2.0**-21 * plain.abs()).all())


@pytest.mark.parametrize("colluders", [(), NAMES[1:2], NAMES[1:3]])
def test_with_one_honest_partner_nothing_of_the_upload_is_left(masked, plain, colluders):
    found = stripped(masked, colluders)[0]
    cosine = float(found @ plain[0] / found.norm() / plain[0].norm())
    assert abs(cosine) < 4 / len(found) ** 0.5
    assert float(found.abs().median()) > 1e6 * float(plain[0].abs().median())


def test_without_the_revealed_shares_the_self_mask_stays(masked, plain):
    view = server_view(masked)
    kept = [e for e in view.entries if type(e.message).__name__ != "RevealedShares"]
    blind = type(view)("curious server", view.parties, view.facts, tuple(kept))
    found = stripped_upload(blind, 0, VICTIM, rings(masked, NAMES[1:])).terms
    assert float((found - plain).abs().median()) > 1.0


def test_who_sees_no_masked_upload_has_nothing_to_strip(masked):
    assert stripped_upload(client_view(masked, NAMES[1]), 0, VICTIM, {}) is None
    assert stripped_upload(eavesdropper_view(run(protection="fedavg")), 0, VICTIM, {}) is None
