"""What perturbation makes of a plan, before noise and masks go on top: both halves, built for one federation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from bilateral.baselines.fedavg import GUARANTEE as FEDAVG_GUARANTEE
from bilateral.baselines.fedavg import FedAvgClient, FedAvgServer
from bilateral.engine.federation import Federation
from bilateral.engine.plan import RunPlan
from bilateral.learning.client import BatchSchedule, Schedule
from bilateral.learning.halves import ClientHalf, ServerHalf
from bilateral.learning.masked_aggregation import UploadShape
from bilateral.learning.uploading import Privatise
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.noise.adaptive import AdaptiveNorm
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.scheme import term_names
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.server import guarantee as perturb_guarantee
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import Randomness, SeededRandomness

NUM_CALIBRATION_SAMPLES = 4


@dataclass
class Layer:
    """What perturbation and noise make of a plan, before masks go on top."""

    server: ServerHalf
    halves: Sequence[ClientHalf]
    shape: UploadShape
    guarantees: list[Guarantee]
    schedules: Sequence[Schedule]
    privatise: Sequence[Privatise] = ()
    """Per client: noise that stays, added below the masks. Empty for none."""
    fixed_bounds: Sequence[float] | None = None
    closed: list[tuple[int, str]] = field(default_factory=list)
    covers: frozenset[int] = frozenset()
    """Ledger lines of masks that the noise below them takes care of, or states in its own words."""
    weight: int | None = None
    privacy: PrivacyReport | None = None
    adaptive: AdaptiveNorm | None = None
    set_norm: Sequence[Callable[[float], None]] = ()
    """Per client: takes over the norm of adaptive clipping."""


@dataclass(frozen=True)
class Surroundings:
    """What every part of a stack is built from."""

    plan: RunPlan
    federation: Federation
    model: nn.Module
    graph: ScaleGraph

    @property
    def names(self) -> list[str]:
        return [client.name for client in self.federation.clients]

    @property
    def secrets(self) -> Randomness:
        """A simulation draws its secrets from the seed; the halves themselves default to the operating system's."""
        return SeededRandomness(self.plan.seed, "secrets")

    @property
    def num_participants(self) -> int:
        """Clients of a round, as planned."""
        return self.plan.federation.num_participants(len(self.names))

    def batch_schedules(self) -> list[Schedule]:
        return [
            BatchSchedule(
                len(client.data),
                self.plan.training.batch_size,
                SeededRandomness(self.plan.seed, "client", client.name, "batches"),
            )
            for client in self.federation.clients
        ]


def plain_layer(around: Surroundings) -> Layer:
    """FedAvg: everyone sees the model."""
    graph, training = around.graph, around.plan.training
    return Layer(
        FedAvgServer(around.model, graph),
        [
            FedAvgClient(name, around.model, graph, around.federation.loss, channels_last=training.channels_last)
            for name in around.names
        ],
        UploadShape(1, graph.num_parameters, graph.num_statistics),
        [FEDAVG_GUARANTEE],
        around.batch_schedules(),
    )


def perturbed_layer(around: Surroundings) -> Layer:
    """Clients train on a perturbed model."""
    settings = around.plan.perturbation.settings(around.federation.loss)
    graph = around.graph
    server = make_perturb_server(around, settings)
    halves = make_perturb_clients(around, settings)
    shape = UploadShape(len(term_names(settings)), graph.num_parameters, graph.num_statistics)
    return Layer(server, halves, shape, [perturb_guarantee(settings)], around.batch_schedules())


def make_perturb_server(around: Surroundings, settings: PerturbationSettings) -> PerturbServer:
    """The server's half of perturbation; it sizes its noise by a few inputs of its own."""
    return PerturbServer(
        around.model,
        around.graph,
        settings,
        around.federation.dataset.input_shape,
        around.secrets.child("server"),
        around.federation.test.inputs[:NUM_CALIBRATION_SAMPLES],
    )


def make_perturb_clients(
    around: Surroundings,
    settings: PerturbationSettings,
    *,
    expanded: tuple[nn.Module, ScaleGraph] | None = None,
    clip: ClipSettings | None = None,
    count_clipped: bool = False,
) -> list[PerturbClient]:
    """The clients' halves; `expanded` is another network than the plan's, with its graph (P2's)."""
    model, graph = expanded or (around.model, around.graph)
    return [
        PerturbClient(
            name,
            model,
            graph,
            settings,
            around.secrets.child("client", name),
            channels_last=around.plan.training.channels_last,
            clip=clip,
            count_clipped=count_clipped,
        )
        for name in around.names
    ]


def mask_settings(around: Surroundings) -> MaskSettings:
    """The plan's, with a floor: whoever fails to turn up, a sum has the threshold of the *planned* participants."""
    settings = around.plan.aggregation.settings()
    return replace(settings, min_in_sum=max(2, settings.threshold_of(around.num_participants)))
