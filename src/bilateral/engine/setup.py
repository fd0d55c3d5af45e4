"""From a plan to the parties of its run: the server's side, and each client, built apart.

    blueprint = make_blueprint(plan, federation)
    training = blueprint.server()            # in the server's process
    client = blueprint.client("hospital-a")  # in that site's process

Formal guarantee (tests/engine/test_sides.py): a server and clients that were built in processes of their own, each
from nothing but the plan, the public facts and its own data, train the same model, bit for bit, as parties that were
built together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from bilateral.engine.federation import Federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.stack import make_stack
from bilateral.errors import DataError, ModelError, PlanError
from bilateral.learning.client import TrainingClient
from bilateral.learning.exchange import Dropouts, LocalExchange, Party, Record
from bilateral.learning.local_steps import ChangeTaker
from bilateral.learning.optimiser import Optimiser, ServerOptimiser
from bilateral.learning.problem import Problem, Share, unlike
from bilateral.learning.secrets import Secrets
from bilateral.learning.site_metrics import SiteMetrics
from bilateral.learning.training import Training
from bilateral.models.builder import NormInputs
from bilateral.models.layout import ModelLayout, adopt_what_stays
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protections.fedavg.protection import FEDAVG
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.registry import NO_NOISE, spoken
from bilateral.protections.sides import Seat
from bilateral.protocols.batch_check import check_batch
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.noise.round_counter import RoundCounter
from bilateral.protocols.placement import device_named
from bilateral.protocols.site_reports import TOLD
from bilateral.protocols.statistics import replace_running_statistics, update_running_statistics
from bilateral.protocols.transport import SERVER
from bilateral.protocols.workspace import Workspace
from bilateral.randomness import SeededRandomness

REFERENCE = FEDAVG
"""The name of a training without any protection."""
CHECKED_AT_ONCE = 512
ANY_MODULE = "protection = 'masks' or 'fedsgd', which take any module"


class Blueprint:
    """A plan for a federation, checked: what it promises, what it spends, and how to build its parties.

    `model` is the architecture with the plan's initial weights, and is never trained. Data that live here are checked
    against it at once.
    """

    def __init__(
        self, plan: RunPlan, federation: Federation, secrets: Secrets, model: nn.Module, layout: ModelLayout
    ) -> None:
        self.plan = plan
        self.federation = federation
        self.layout = layout
        self._secrets = secrets
        self._model = model
        wanted = federation.problem.schema
        found = {name: list(share.schema.differences(wanted)) for name, share in federation.shares.items()}
        if any(found.values()):
            raise unlike([(name, differences) for name, differences in found.items() if differences])
        for name, share in federation.shares.items():
            _refuse_batch_of_one(name, plan, len(share), layout)
        if plan.evaluation.site_holdout and (plan.traits.hides_model or plan.traits.computes_on_shares):
            raise PlanError(
                "evaluation.site_holdout: sites are not sent the model as it is in this plan, and cannot measure it.",
                remedy="Leave it out, or use protection = 'masks' or 'fedsgd'.",
            )
        if plan.evaluation.shares_site_metrics and plan.chosen.noise is not None:
            raise PlanError(
                "evaluation.site_metrics = 'share' beside noise: sites would tell exact figures of samples that no "
                "epsilon covers.",
                remedy="Let them stay (the default), or leave the noise out.",
            )
        if plan.named_dealer in (SERVER, *federation.names):
            raise PlanError(
                f"federation.dealer is {plan.named_dealer!r}, which takes part in this run otherwise.",
                remedy="A dealer that is named has no data and nothing else to do: give it a name of its own.",
            )
        _refuse_placement(plan, layout)
        around = Groundwork(plan, federation.problem, federation.members, model, layout, secrets)
        self._stack = make_stack(plan, around)

    @property
    def name(self) -> str:
        """`perturbation + ring masks`"""
        return self._stack.name

    @property
    def guarantee(self) -> Guarantee:
        found = self._stack.guarantee
        told = TOLD if self.plan.evaluation.shares_site_metrics else ()
        return replace(found, leaks=found.leaks + told)

    @property
    def privacy(self) -> PrivacyReport | None:
        return self._stack.privacy

    @property
    def term_scales(self) -> tuple[float, ...]:
        """What sites must be told of the noise (`Problem.term_scales`); empty without sound noise."""
        return self._stack.term_scales

    def server(self) -> Training:
        """The server's side, with a model of its own: in a deployment its initial weights are the server's secret."""
        stack, seed = self._stack, self._secrets.model_seed(self.plan.seed)
        model = copy.deepcopy(self._model)
        if seed != self.plan.seed:
            model = initial_model(self.plan, self.federation.problem, seed, self.federation.network)
            adopt_what_stays(model, self._model, self.layout)
        return Training(
            stack.name,
            model,
            self.layout,
            stack.make_server(model),
            stack.make_aggregation(),
            self._optimiser(model),
            self.plan.training.rounds,
            self.guarantee,
            stack.privacy,
            stack.check,
            counts_classes=self.federation.problem.objective.balanced,
            take_statistics=replace_running_statistics
            if self.plan.training.takes_local_steps
            else update_running_statistics,
            device=device_named(self.plan.training.device),
        )

    def _optimiser(self, model: nn.Module) -> Optimiser:
        """With local steps the plan's optimiser is the clients', and the server has a rule of its own."""
        training = self.plan.training
        if training.takes_local_steps:
            return ChangeTaker(model, self.layout, training.server_rule())
        return ServerOptimiser(model, self.layout, training.optimiser_settings())

    def client(
        self,
        name: str,
        *,
        reordering: int = 0,
        counter: RoundCounter | None = None,
        workspace: Workspace | None = None,
        note: Callable[[dict[str, Any]], None] | None = None,
    ) -> TrainingClient:
        """One client, from its data here. `counter` counts the rounds that a budget allows (sound noise).

        `workspace`: memory that it shares with other clients of this process, if they step one after the other.
        """
        data, plan, stack = self._share(name), self.plan, self._stack
        private = plan.traits.spends_budget
        if private:  # once and before the first round: later an error would be an answer
            for part in data.chunks(CHECKED_AT_ONCE):
                check_batch(name, part.inputs, part.targets, self.layout, self.federation.problem.objective)
        # Where a claim rests on it, what a client draws while training (dropout, augmentation) is a secret of its own.
        draws = self._secrets.training_stream(name) if private else SeededRandomness(plan.seed, "client", name)
        measuring = self._measuring(data, note)
        parts = replace(
            stack.make_client(Seat(name, len(data), counter, workspace)), shares_process=workspace is not None
        )
        return TrainingClient(
            parts.half,
            data,
            parts.schedule,
            draws,
            uploader=stack.make_uploader(name, parts),
            weight=stack.weight,
            augment=plan.training.augment,
            reordering=reordering,
            look=None if measuring is None else measuring.look,
            report=measuring.report if measuring is not None and plan.evaluation.shares_site_metrics else None,
        )

    def _measuring(self, data: Share, note: Callable[[dict[str, Any]], None] | None) -> SiteMetrics | None:
        """What a site does with models besides training, if it keeps samples back for that."""
        if data.held is None or note is None:
            return None
        problem, plan = self.federation.problem, self.plan
        objective, every = problem.objective, plan.training.evaluate_every
        return SiteMetrics(self._model, self.layout, data.held, objective, plan.evaluation.measures, every, note)

    def helper(self, name: str) -> Party:
        """A party without data that this plan needs."""
        return self._stack.helpers[name](self._secrets.key_ring(name))

    def local_exchange(
        self,
        record: Record,
        dropouts: Dropouts | None = None,
        *,
        reordering: int = 0,
        note: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> LocalExchange:
        """All clients whose data are here, and whom they need, as a transport. `note`: what each finds for itself."""
        shared = Workspace()  # one step at a time: one set of weights will do
        clients = {
            name: self.client(
                name,
                reordering=reordering,
                workspace=shared,
                note=None if note is None else partial(note, name),
            )
            for name in self.federation.shares
        }
        return LocalExchange(clients, record, dropouts, {name: self.helper(name) for name in self._stack.helpers})

    def _share(self, name: str) -> Share:
        told = {member.name: member.num_samples for member in self.federation.members}
        if name not in told:
            raise PlanError(f"{name!r} is no client of this run; they are {', '.join(told)}.")
        if name not in self.federation.shares:
            raise DataError(f"The data of {name} are not here.", remedy=f"Build that client in {name}'s own process.")
        data = self.federation.shares[name]
        if told[name] and told[name] != len(data):
            raise DataError(
                f"{name} has {len(data)} samples, and {told[name]} were told to the others.",
                remedy="The accounting rests on that number: tell the right one.",
            )
        return data


def make_blueprint(plan: RunPlan, federation: Federation, secrets: Secrets | None = None) -> Blueprint:
    """The plan's blueprint; by default with the secrets of a simulation."""
    return make_blueprints([plan], federation, secrets)[0]


def make_blueprints(
    plans: Sequence[RunPlan], federation: Federation, secrets: Secrets | None = None
) -> list[Blueprint]:
    """One blueprint a plan (they differ in protection only), all with the same initial model and batches."""
    first, names = plans[0], federation.names
    model = initial_model(first, federation.problem, network=federation.network)
    layouts = {asked: layout_for(asked, model, federation.problem) for asked in map(_trace_of, plans)}
    return [
        Blueprint(
            plan,
            federation,
            secrets or SimulatedSecrets(plan.seed, plan.parties(names)),
            model,
            layouts[_trace_of(plan)],
        )
        for plan in plans
    ]


def reference_plan(plan: RunPlan) -> RunPlan:
    """The same plan as plain FedSGD."""
    bare = {"protection": FEDAVG, "aggregation.masks": "none", "noise.mechanism": NO_NOISE}
    return plan.with_settings(bare)


def initial_model(
    plan: RunPlan,
    problem: Problem,
    seed: int | None = None,
    network: Callable[[Any, int], nn.Module] | None = None,
) -> nn.Module:
    """The plan's model with the initial weights of its seed, or of another.

    `network` builds it if it is no model that the plan names: a module that was given has the weights that it has.
    """
    model = _built(plan, problem, seed, network)
    if problem.form is not None:
        problem.form.attach(model)
    return model


def _built(
    plan: RunPlan, problem: Problem, seed: int | None, network: Callable[[Any, int], nn.Module] | None
) -> nn.Module:
    if network is not None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(plan.seed if seed is None else seed)
            return network(problem.shapes, problem.num_outputs).to(getattr(torch, plan.training.dtype))
    return build_model(
        plan.model.name,
        input_shape=problem.shapes,
        num_outputs=problem.num_outputs,
        seed=plan.seed if seed is None else seed,
        **plan.model.options,
    ).to(getattr(torch, plan.training.dtype))


def layout_of(plan: RunPlan, model: nn.Module, problem: Problem) -> ModelLayout:
    """What the plan's protections need to know of the model: its scale graph only if they ask for it."""
    return layout_for(_trace_of(plan), model, problem)


def layout_for(norm_inputs: NormInputs | None, model: nn.Module, problem: Problem) -> ModelLayout:
    """The model's scale graph, or with None its bare layout; checked against the problem."""
    if norm_inputs is None:
        return _checked(ModelLayout.of_module(model, problem.examples[:2]), model, problem)
    try:
        return analyse(model, problem, norm_inputs)
    except ModelError as error:
        if not _is_a_module_that_works(model, problem):
            raise
        raise type(error)(str(error), remedy=f"Or choose {ANY_MODULE}.") from error


def _is_a_module_that_works(model: nn.Module, problem: Problem) -> bool:
    try:
        layout_for(None, model, problem)
    except ModelError:
        return False
    return True


def analyse(model: nn.Module, problem: Problem, norm_inputs: NormInputs = "exact") -> ScaleGraph:
    """The model's scale graph, checked against the problem."""
    if problem.form is not None:
        raise ModelError(
            f"The samples have several inputs, {problem.form}, and what is traced is a model of one.",
            remedy="Put them into one tensor, of which the model takes its parts (`x[:, :3]`; numbers of tokens with "
            "`.long().clamp(0, n - 1)`): perturbation takes that, sealed training does not.",
        )
    graph = ScaleGraph.of(model, problem.examples[:2], norm_inputs=norm_inputs)
    _checked(graph, model, problem)
    return graph


def _trace_of(plan: RunPlan) -> NormInputs | None:
    """How the plan has its model traced; None is not at all."""
    return plan.perturbation.norm_inputs if plan.traits.needs_trace else None


def _checked(layout: ModelLayout, model: nn.Module, problem: Problem) -> ModelLayout:
    if layout.num_outputs not in (0, problem.num_outputs):  # several heads are for a loss of the user's own
        raise ModelError(
            f"The model has {layout.num_outputs} outputs, {problem.dataset} needs {problem.num_outputs}.",
            remedy="Give its last layer that many outputs.",
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise ModelError("All parameters of the model are frozen.", remedy="Leave requires_grad=True on some of them.")
    return layout


def _refuse_placement(plan: RunPlan, layout: ModelLayout) -> None:
    """Devices, bfloat16 and micro-batches are for clients that compute plain gradients, of which nothing is exact."""
    training, by_sample = plan.training, plan.traits.samples_by_chance
    is_plain = training.device == "cpu" and training.placement().is_plain
    if not is_plain and (by_sample or not plan.chosen.model.computes_anywhere):
        raise PlanError(
            "training.device, precision and micro_batch are for FedSGD and FedAvg, with or without masks; this plan is "
            f"{spoken(plan.protection)}{' with noise for every sample' if by_sample else ''}.",
            remedy="Use protection = 'masks' (with noise: noise.unit = 'client'), or leave these settings out.",
        )
    if training.micro_batch and layout.statistics:
        raise PlanError(
            "training.micro_batch would change what is trained: BatchNorm normalises by the statistics of what it sees "
            "at once, which would be a part of the batch.",
            remedy="Use a smaller training.batch_size, or a model with GroupNorm.",
        )


def _refuse_batch_of_one(name: str, plan: RunPlan, num_samples: int, layout: ModelLayout) -> None:
    if layout.statistics and min(num_samples, plan.training.batch_size or num_samples) < 2:
        raise DataError(
            f"{name}: a batch of one sample cannot train a model with BatchNorm.",
            remedy="Use a batch size of 2 or more, give the client more data, or use GroupNorm.",
        )
