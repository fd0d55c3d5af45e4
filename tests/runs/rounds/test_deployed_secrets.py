"""Terms of a deployment, where every secret is drawn by its owner: what a lying server and a crash cannot do."""

from dataclasses import replace

import pytest
import torch
from tests.runs.rounds.harness import ONE_AT_A_TIME, VERSION, Call, Killed, LocalSites, conduct
from tests.runs.rounds.test_conductor import SOUND, events, small

from bilateral.engine.federation import member_names
from bilateral.engine.secrets import OwnSecrets
from bilateral.protocols.mask.keys import Identity
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode, encode
from bilateral.randomness import SecureRandomness
from bilateral.runs.rounds.desk import SiteDesk
from bilateral.runs.rounds.enrolment import INTRODUCE, Briefing


class OwnSites(LocalSites):
    """Sites with identities and secrets of their own; `lie` changes what one of them is told."""

    def __post_init__(self):
        names = self.plan.parties(member_names(self.plan))
        self.identities = {name: Identity.generate(SecureRandomness()) for name in names}
        self.pinned = {name: identity.public_bytes for name, identity in self.identities.items()}
        self.lie = lambda site, briefing: briefing
        super().__post_init__()

    def desk(self, name, plan=None):
        def own(briefing):
            return OwnSecrets(briefing.run_id, self.pinned, name, self.identities[name])

        return SiteDesk(name, self.plan, own, version=VERSION)

    def enrol(self, site, number, packet):
        if number == INTRODUCE:
            return super().enrol(site, number, packet)
        (briefing,) = packet
        told = encode(self.lie(site, decode(briefing, [Briefing], SERVER)))
        with ONE_AT_A_TIME:
            return self.desks[site].brief(told)


def conduct_deployed(plan, path, sites):
    def own(term, names):
        return OwnSecrets(SecureRandomness().random_bytes(32), sites.pinned)

    return conduct(plan, path, sites, make_secrets=own)


@pytest.mark.parametrize("settings", [{}, {"training__loss": "mse"}, SOUND], ids=["ce", "mse", "sound"])
def test_a_deployment_trains(tmp_path, settings):
    chosen = small(**settings)
    assert conduct_deployed(chosen, tmp_path / "run", OwnSites(chosen)).finished
    assert events(tmp_path / "run", "message_refused") == []


def test_sites_that_were_told_different_facts_share_no_sum(tmp_path):
    """Other scales of terms for one site would leave the others' noise out of its sum."""
    chosen = small(**SOUND, federation__patience=0.1)
    sites = OwnSites(chosen)

    def lie(site, briefing):
        return briefing if site == "client-1" else replace(briefing, term_scales=briefing.term_scales * 1024)

    sites.lie = lie
    conduct_deployed(chosen, tmp_path / "run", sites)
    assert events(tmp_path / "run", "round_done") == []
    assert {event["site"] for event in events(tmp_path / "run", "message_refused")} == {
        "client-2",
        "client-3",
        "client-4",
    }


def test_a_round_that_is_repeated_after_a_crash_has_another_batch(tmp_path):
    """Two sums over one batch and different sites would differ by one site's upload."""
    chosen = small(training__rounds=2)
    sites = OwnSites(chosen)
    one, other = (site_batches(chosen, sites, "client-1") for _ in range(2))
    assert not torch.equal(one, other)
    killed = []

    def kill(call: Call) -> None:
        if call.stage == "unmasking" and not killed:
            killed.append(call)
            raise Killed

    sites.fault = kill
    with pytest.raises(Killed):
        conduct_deployed(chosen, tmp_path / "run", sites)
    again = OwnSites(chosen)
    assert conduct_deployed(chosen, tmp_path / "run", again).finished


def site_batches(chosen, sites, name):
    secrets = OwnSecrets(b"r" * 32, sites.pinned, name, sites.identities[name])
    from bilateral.learning.client import BatchSchedule

    return BatchSchedule(100, chosen.training.batch_size, secrets.batches(chosen.seed, name)).batch(0)
