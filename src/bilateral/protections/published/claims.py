"""What P2's scheme and its ablations assume and claim, for a plan."""

from __future__ import annotations

from bilateral.errors import PlanError
from bilateral.protections.groundwork import Groundwork
from bilateral.protocols.messages import UploadShape
from bilateral.protocols.noise import published_accounting as theorems
from bilateral.protocols.noise.accounting import ReportRow, spent
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.perturb.scheme import term_names


def sensitivity(around: Groundwork) -> float:
    """How far one unit is *assumed* to move a client's true mean gradient.

    P2 sets it to the clipping norm (and that to 1), and nobody clips. For one sample of a batch that is norm / batch,
    though replacing a sample of that norm can move the mean by twice as much; the report says what is assumed.
    """
    noise, training = around.plan.noise, around.plan.training
    if noise.unit == "client":
        return noise.clip
    smallest = min(around.sample_counts)
    return noise.clip / (min(training.batch_size, smallest) or smallest)


def claimed_epsilon(around: Groundwork) -> float:
    epsilon = around.plan.noise.epsilon
    if epsilon is None:
        raise PlanError("The published noise needs an epsilon.", remedy="Set noise.epsilon; P2 uses 1 to 10.")
    return epsilon


def report(around: Groundwork, observer: str, assumption: str, deviations: dict[str, float]) -> PrivacyReport:
    """One round as P2 counts, and all rounds as they would compose if the claim for one held."""
    plan, epsilon = around.plan, claimed_epsilon(around)
    ratio = 1.0 / theorems.theta_of(epsilon, plan.noise.delta) ** 0.5
    total = spent(ratio, 1.0, plan.training.rounds, plan.noise.delta).epsilon
    moved = f"one {plan.noise.unit} moves a client's mean gradient by at most {sensitivity(around):.3g}"
    row = ReportRow(observer, epsilon, total, plan.noise.delta, f"{moved}; {assumption}")
    return PrivacyReport("published, conditional", plan.noise.unit, deviations, (row,))


def upload_shape(around: Groundwork) -> UploadShape:
    """Of an upload under the plan's own perturbation."""
    graph = around.graph
    return UploadShape(len(term_names(around.perturbation)), graph.num_parameters, graph.num_statistics)
