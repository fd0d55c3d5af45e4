"""What perturbation makes of a plan, before noise and masks go on top: how to build each side, and what it promises.

Everything here is a recipe. The server's process builds the server's side, a site's process that client, and both from
the same public facts (`Surroundings`), so that they agree without talking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from bilateral.baselines.fedavg import GUARANTEE as FEDAVG_GUARANTEE
from bilateral.baselines.fedavg import FedAvgClient, FedAvgServer
from bilateral.engine.federation import Member, Problem
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import Secrets
from bilateral.errors import PlanError
from bilateral.learning.client import BatchSchedule, Schedule
from bilateral.learning.halves import ClientHalf, ServerHalf
from bilateral.learning.upload_check import UploadShape
from bilateral.learning.uploading import AddPairwise, Privatise
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.noise.adaptive import AdaptiveNorm
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.noise.round_counter import RoundCounter
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.recovery_check import RecoveryCheck
from bilateral.protocols.perturb.scheme import term_names
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.server import guarantee as perturb_guarantee
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.protocols.workspace import Workspace
from bilateral.randomness import Randomness


@dataclass(frozen=True)
class Seat:
    """What one client's side is built from, besides the surroundings: known in its own process alone."""

    name: str
    num_samples: int
    counter: RoundCounter | None = None
    """Counts the rounds that a budget allows; None counts in memory."""
    workspace: Workspace | None = None
    """Memory that clients of one process share; None is one of its own."""


@dataclass
class ClientParts:
    """One client's side, before masks go on top."""

    half: ClientHalf
    schedule: Schedule
    privatise: Privatise | None = None
    """Noise that stays, added below the masks."""
    pay: Callable[[int], None] | None = None
    """Counts a round against the client's budget, when its model has come."""
    set_norm: Callable[[float], None] | None = None
    """Takes over the norm of adaptive clipping."""


@dataclass
class Layer:
    """What perturbation and noise make of a plan, before masks go on top."""

    make_server: Callable[[nn.Module], ServerHalf]
    """Takes the model that the server trains."""
    make_client: Callable[[Seat], ClientParts]
    shape: UploadShape
    guarantees: list[Guarantee]
    pairwise: Callable[[KeyRing], AddPairwise] | None = None
    """P2's noise that cancels between clients."""
    fixed_bounds: Sequence[float] | None = None
    closed: list[tuple[int, str]] = field(default_factory=list)
    covers: frozenset[int] = frozenset()
    """Ledger lines of masks that the noise below them takes care of, or states in its own words."""
    weight: int | None = None
    privacy: PrivacyReport | None = None
    make_adaptive: Callable[[], AdaptiveNorm] | None = None
    """The server's side of adaptive clipping."""
    check: RecoveryCheck | None = None
    """Of the recovered gradient, before the first round."""


@dataclass(frozen=True)
class Surroundings:
    """What every part of a stack is built from. All but `secrets` is public and the same in every process."""

    plan: RunPlan
    problem: Problem
    members: tuple[Member, ...]
    model: nn.Module
    """The architecture with the plan's initial weights. Nobody trains this one."""
    graph: ScaleGraph
    secrets: Secrets

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    @property
    def num_participants(self) -> int:
        """Clients of a round, as planned."""
        return self.plan.federation.num_participants(len(self.members))

    @property
    def sample_counts(self) -> list[int]:
        """Every member's number of samples; an error if one did not tell."""
        silent = [member.name for member in self.members if member.num_samples < 1]
        if silent:
            raise PlanError(
                f"This plan's accounting needs the number of samples of every client, and {', '.join(silent)} did not "
                "tell it.",
                remedy="Have every site tell it before the run is built (`needs_sample_counts`).",
            )
        return [member.num_samples for member in self.members]

    @property
    def perturbation(self) -> PerturbationSettings:
        return self.plan.perturbation.settings(self.problem.loss)

    def batch_schedule(self, seat: Seat) -> Schedule:
        """Which samples are used when is no secret here; noise that rests on sampling brings a schedule of its own."""
        return BatchSchedule(
            seat.num_samples, self.plan.training.batch_size, self.secrets.batches(self.plan.seed, seat.name)
        )


def plain_layer(around: Surroundings) -> Layer:
    """FedSGD: everyone sees the model."""
    graph = around.graph

    def make_client(seat: Seat) -> ClientParts:
        return ClientParts(make_fedavg_client(around, seat), around.batch_schedule(seat))

    shape = UploadShape(1, graph.num_parameters, graph.num_statistics)
    return Layer(lambda model: FedAvgServer(model, graph), make_client, shape, [FEDAVG_GUARANTEE])


def perturbed_layer(around: Surroundings) -> Layer:
    """Clients train on a perturbed model."""
    settings, graph = around.perturbation, around.graph

    def make_client(seat: Seat) -> ClientParts:
        return ClientParts(make_perturb_client(around, seat, settings), around.batch_schedule(seat))

    shape = UploadShape(len(term_names(settings)), graph.num_parameters, graph.num_statistics)
    return Layer(
        lambda model: make_perturb_server(around, model, settings),
        make_client,
        shape,
        [perturb_guarantee(settings)],
        check=recovery_check(around),
    )


def make_perturb_server(around: Surroundings, model: nn.Module, settings: PerturbationSettings) -> PerturbServer:
    """The server's half of perturbation; it sizes its noise by a few inputs of its own."""
    problem = around.problem
    return PerturbServer(
        model, around.graph, settings, problem.input_shape, around.secrets.stream("server"), problem.examples
    )


def recovery_check(around: Surroundings) -> RecoveryCheck:
    """Both halves of perturbation against plain autograd, on the server's own inputs."""
    graph, settings, problem = around.graph, around.perturbation, around.problem

    def make_halves(model: nn.Module, inputs: Tensor, randomness: Randomness) -> tuple[PerturbServer, PerturbClient]:
        server = PerturbServer(model, graph, settings, problem.input_shape, randomness.child("server"), inputs)
        own, channels_last = randomness.child("client"), around.plan.training.channels_last
        return server, PerturbClient("the check", model, graph, settings, own, channels_last=channels_last)

    return RecoveryCheck(graph, settings.loss, make_halves, problem.examples)


def make_perturb_client(
    around: Surroundings,
    seat: Seat,
    settings: PerturbationSettings,
    *,
    expanded: tuple[nn.Module, ScaleGraph] | None = None,
    clip: ClipSettings | None = None,
    count_clipped: bool = False,
) -> PerturbClient:
    """A client's half; `expanded` is another network than the plan's, with its graph (P2's)."""
    model, graph = expanded or (around.model, around.graph)
    return PerturbClient(
        seat.name,
        model,
        graph,
        settings,
        around.secrets.stream("client", seat.name),
        channels_last=around.plan.training.channels_last,
        clip=clip,
        count_clipped=count_clipped,
        workspace=seat.workspace,
    )


def make_fedavg_client(
    around: Surroundings, seat: Seat, *, clip: ClipSettings | None = None, count_clipped: bool = False
) -> FedAvgClient:
    """A client's half without perturbation."""
    return FedAvgClient(
        seat.name,
        around.model,
        around.graph,
        around.problem.loss,
        channels_last=around.plan.training.channels_last,
        clip=clip,
        count_clipped=count_clipped,
        workspace=seat.workspace,
    )


def mask_settings(around: Surroundings) -> MaskSettings:
    """The plan's, with a floor: whoever fails to turn up, a sum has the threshold of the *planned* participants."""
    settings = around.plan.aggregation.settings()
    return replace(settings, min_in_sum=max(2, settings.threshold_of(around.num_participants)))
