"""A protection as everything else sees it.

A plan names two: `protection` says what clients are sent and upload (`ModelProtection`), `noise.mechanism` what noise
goes on top (`NoiseProtection`), if any. Masks go on top of both, and are none of their business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel
from torch import Tensor, nn

from bilateral.learning.halves import ClientHalf, GradientCheck, ServerHalf
from bilateral.models.layout import ModelLayout
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.groundwork import ClientBasis, Groundwork, Plan
from bilateral.protections.sections import NoisePlan
from bilateral.protections.sides import ClientParts, Seat, Sides
from bilateral.protections.traits import MaskName, Traits
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Message, UploadShape
from bilateral.protocols.objective import Objective


@dataclass(frozen=True)
class Vocabulary:
    """How a protection is spoken of, and the messages that it speaks besides `Upload`."""

    spoken: str = ""
    """Its name as people read it, if that is not its name."""
    to_client: tuple[type[Message], ...] = ()
    to_server: tuple[type[Message], ...] = ()
    stages: Mapping[type[Message], str] = field(default_factory=dict)
    """What a client is doing when it was last sent such a message, in the operator's words."""


@dataclass(frozen=True)
class Mix:
    """Protections as they were chosen, with what decides whether they go together."""

    model: AnyModelProtection
    noise: NoiseProtection | None
    objective: Objective
    masks: MaskName
    num_participants: int
    num_statistics: int = 0
    local_steps: bool = False
    unit: str = "sample"
    """What noise protects, if there is any."""
    asks: bool = False
    """Whether clients ask the server something in the middle of a round."""
    batch_norms: tuple[str, ...] = ()
    """Layers whose batch statistics are uploaded."""

    @property
    def loss(self) -> str:
        """The loss by its name."""
        return self.objective.name


@dataclass(frozen=True)
class Rule:
    """A mix that is refused, and why."""

    name: str
    applies: Callable[[Mix], bool]
    reason: str
    remedy: str
    layers: Callable[[Mix], tuple[str, ...]] = lambda _: ()
    """Whose fault it is."""


class Protection(ABC):
    """What both kinds have."""

    name: str
    """What plans, checkpoints and run directories call it."""
    aliases: tuple[str, ...] = ()
    """Other names that a plan may use for it."""
    settings: type[BaseModel] | None = None
    """A section of a plan that is its own, under its name; read with `Plan.own_settings`."""
    vocabulary = Vocabulary()
    refused: tuple[Rule, ...] = ()
    """Mixes that would not hold what they claim, in the order in which they are told."""

    @property
    @abstractmethod
    def title(self) -> str:
        """How the name of a stack has it: `sound noise`."""

    @abstractmethod
    def enter(self, protections: dict[str, AnyModelProtection], mechanisms: dict[str, NoiseProtection]) -> None:
        """Into the register of its kind."""

    @abstractmethod
    def sides(self, around: Groundwork) -> Sides:
        """How to build each side, and what is claimed and spent: everything below the masks."""

    @abstractmethod
    def warnings(self, plan: Plan) -> Iterator[str]:
        """What operators of a deployment should know of its limits."""

    def check_network(self, model: nn.Module, layout: ModelLayout) -> None:  # noqa: B027
        """Raise by name for what this cannot train, besides what a trace refuses (`Traits.needs_trace`)."""


class AnyModelProtection(Protection):
    """What clients are sent, and what they upload. Its `sides` make both halves, of all that the parties agreed on."""

    can_clip: bool = False
    """Its clients take clipping, as noise of clients needs it: then it is a `ModelProtection`."""
    baseline_of: str = ""
    """Whose scheme it is, if it is here to be measured against: no rung of the ladder, compared only if asked for."""
    one_gradient_because: str = "its clients are written to give one gradient a round"
    """Why there are no local steps; empty where `make_client` takes them (`training.local_steps`)."""
    computes_anywhere: bool = False
    """`make_client` takes devices, bfloat16 and micro-batches (`TrainingSettings.placement`)."""
    takes_any_objective: bool = False
    """`make_client` takes any loss (`ClientBasis.objective`), and not only mse and ce as they are."""

    @property
    def title(self) -> str:
        return self.name

    def enter(self, protections: dict[str, AnyModelProtection], mechanisms: dict[str, NoiseProtection]) -> None:  # noqa: ARG002
        protections[self.name] = self

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits()

    @abstractmethod
    def guarantee(self, around: Groundwork) -> Guarantee:
        """What it claims and admits, without masks and noise."""

    def term_names(self, plan: Plan, loss: str) -> tuple[str, ...]:  # noqa: ARG002
        """The rows of an upload."""
        return ("gradient",)

    def asks(self, plan: Plan, loss: str) -> bool:  # noqa: ARG002
        """Whether clients ask the server in the middle of a round, which shows it their batch."""
        return False

    def term_scales(self, around: Groundwork) -> tuple[float, ...]:  # noqa: ARG002
        """How noise is divided between the terms; empty is evenly."""
        return ()

    def recovery_check(self, around: Groundwork) -> GradientCheck | None:  # noqa: ARG002
        """Of the recovered gradient against plain autograd, before the first round."""
        return None

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield from ()


class ModelProtection(AnyModelProtection):
    """One whose clients are made each by itself: without knowing who else takes part."""

    @abstractmethod
    def make_server(self, around: Groundwork, model: nn.Module) -> ServerHalf:
        """The server's half, for the model that the server trains."""

    @abstractmethod
    def make_client(self, basis: ClientBasis) -> ClientHalf:
        """A client's half."""

    def sides(self, around: Groundwork) -> Sides:
        def make_client(seat: Seat) -> ClientParts:
            return ClientParts(self.make_client(around.basis(seat)), around.batch_schedule(seat))

        layout = around.layout
        num_terms = len(self.term_names(around.plan, around.problem.loss))
        return Sides(
            lambda model: self.make_server(around, model),
            make_client,
            UploadShape(num_terms, layout.num_parameters, layout.num_statistics),
            (self.guarantee(around),),
            check=self.recovery_check(around),
        )


class NoiseProtection(Protection):
    """Noise on top of a protection of models."""

    @property
    def title(self) -> str:
        return f"{self.name} noise"

    def enter(self, protections: dict[str, AnyModelProtection], mechanisms: dict[str, NoiseProtection]) -> None:  # noqa: ARG002
        mechanisms[self.name] = self

    @abstractmethod
    def check(self, settings: NoisePlan) -> None:
        """Raise a `ValueError` for a `[noise]` section that is not for it."""

    @abstractmethod
    def traits(self, plan: Plan, below: Traits) -> Traits:
        """Of both together; `below` are those of the model's protection."""

    def term_names(self, plan: Plan, loss: str, below: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG002
        """The rows of an upload; `below` are those of the model's protection."""
        return below

    def client_network(self, network: nn.Module, graph: ScaleGraph, examples: Tensor) -> tuple[nn.Module, ScaleGraph]:  # noqa: ARG002
        """What clients train in place of the plan's network."""
        return network, graph

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield from ()
