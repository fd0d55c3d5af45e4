"""MP-DP-Naive for a plan: both sides, the noise of a client, and what it claims."""

from __future__ import annotations

from bilateral.protections.groundwork import Groundwork
from bilateral.protections.mp_dp_naive.client import MpDpNaiveClient, guarantee
from bilateral.protections.perturbation.halves import make_perturb_client, make_perturb_server, recovery_check
from bilateral.protections.published.claims import claimed_epsilon, report, sensitivity, upload_shape
from bilateral.protections.sides import ClientParts, Seat, Sides
from bilateral.protocols.noise import published_accounting as theorems


def mp_dp_naive_sides(around: Groundwork) -> Sides:
    """Normal noise of every client on the perturbed gradient."""
    plan, settings = around.plan, around.perturbation
    epsilon = claimed_epsilon(around)
    sigma = theorems.local_sigma(epsilon, plan.noise.delta, sensitivity=sensitivity(around))

    def make_client(seat: Seat) -> ClientParts:
        inner, own = make_perturb_client(around.basis(seat), settings), around.secrets.stream("noise", seat.name)
        half = MpDpNaiveClient(inner, around.model, around.graph, sigma, own)
        return ClientParts(half, around.batch_schedule(seat))

    stated = guarantee(settings, epsilon, plan.noise.delta)
    return Sides(
        lambda model: make_perturb_server(around, model, settings),
        make_client,
        upload_shape(around),
        (stated,),
        weight=1,
        privacy=report(
            around, "an observer of the first uploaded term", stated.claims[-1].assumption, {"local": sigma}
        ),
        check=recovery_check(around),
    )
