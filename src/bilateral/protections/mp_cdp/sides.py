"""MP-CDP for a plan: both sides, the noise of the trusted server, and what it claims."""

from __future__ import annotations

from torch import nn

from bilateral.protections.groundwork import Groundwork
from bilateral.protections.mp_cdp.server import MpCdpServer, guarantee
from bilateral.protections.perturbation.halves import make_perturb_client, make_perturb_server, recovery_check
from bilateral.protections.published.claims import claimed_epsilon, report, sensitivity, upload_shape
from bilateral.protections.sides import ClientParts, Seat, Sides
from bilateral.protocols.noise import published_accounting as theorems


def mp_cdp_sides(around: Groundwork) -> Sides:
    """Noise of a trusted server."""
    plan, count, settings = around.plan, around.num_participants, around.perturbation
    epsilon = claimed_epsilon(around)
    sigma = theorems.central_sigma(epsilon, plan.noise.delta, count, sensitivity=sensitivity(around))

    def make_server(model: nn.Module) -> MpCdpServer:
        inner = make_perturb_server(around, model, settings)
        return MpCdpServer(inner, model, around.graph, sigma, count, around.secrets.stream("noise"))

    def make_client(seat: Seat) -> ClientParts:
        return ClientParts(make_perturb_client(around.basis(seat), settings), around.batch_schedule(seat))

    stated = guarantee(settings, epsilon, plan.noise.delta)
    return Sides(
        make_server,
        make_client,
        upload_shape(around),
        (stated,),
        weight=1,
        privacy=report(
            around, "whoever sees models alone; the server is trusted", stated.claims[-1].assumption, {"central": sigma}
        ),
        check=recovery_check(around),
    )
