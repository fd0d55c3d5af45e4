"""Serving a run's model as a kind of run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bilateral.engine.flare.site_settings import QUESTIONS
from bilateral.engine.kind import SERVING, KitAround, Outline, ServerAround, SiteAround, Vocabulary
from bilateral.engine.named_code import code_of
from bilateral.engine.plan import load_plan
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import DeploymentError, PlanError, PlanNotAcceptedError
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.mask.keys import KEY_BYTES, Identity
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.randomness import Randomness, SecureRandomness, SeededRandomness
from bilateral.serving.dealer import AnswerDealer
from bilateral.serving.folder import DOOR_FOLDER, FOLDER, UNIT, Kit, write_kit
from bilateral.serving.hosted.dealing import DealingSite
from bilateral.serving.hosted.door import AskingDoor
from bilateral.serving.hosted.hosted import DATA, MODEL, RUN, HostedServing
from bilateral.serving.hosted.messages import FROM_CLIENT_SITE, FROM_DEALER_SITE, TO_CLIENT_SITE, TO_DEALER_SITE
from bilateral.serving.hosted.plan import ServingPlan, dump_serving_plan, parse_serving_plan
from bilateral.serving.hosted.server import ServingRun
from bilateral.serving.hosted.site import ServiceSite
from bilateral.serving.model import ServedModel

_ONLY_APART: Final = "A plan of serving is for parties that are processes of their own."


VOCABULARY: Final = Vocabulary(
    tuple(dict.fromkeys((*TO_CLIENT_SITE, *TO_DEALER_SITE))),
    tuple(dict.fromkeys((*FROM_CLIENT_SITE, *FROM_DEALER_SITE))),
)


@dataclass(frozen=True)
class ServingKind(HostedServing):
    """A run's model answers clients that do not have it. A step is a question."""

    name: str = SERVING
    plan: type[ServingPlan] = ServingPlan
    command: str = "serve"
    deployable: bool = True
    useful_when_stopped: bool = True
    vocabulary: Vocabulary = VOCABULARY

    def parse(self, values: dict[str, Any], source: str) -> ServingPlan:
        return parse_serving_plan(values, source)

    def dump(self, plan: ServingPlan) -> str:
        return dump_serving_plan(plan)

    def outline(self, plan: ServingPlan) -> Outline:
        total = plan.questions * len(plan.clients)
        return Outline(
            plan.run, "answers", total, "question", f"serving-{plan.run}", patience=plan.patience, is_open=True
        )

    def members(self, plan: ServingPlan, data_dir: Path | None = None) -> tuple[str, ...]:  # noqa: ARG002
        return plan.parties

    def guarantee(self, plan: ServingPlan, data_dir: Path | None = None) -> Guarantee:  # noqa: ARG002
        raise PlanError("What a service guarantees depends on the network that it serves.", remedy="Serve it.")

    def checkpoint_every(self, plan: ServingPlan) -> int:  # noqa: ARG002
        return 0

    def server(self, plan: ServingPlan, around: ServerAround) -> ServingRun:
        if around.sites is None:
            raise PlanError(_ONLY_APART, remedy="Serve with `bilateral serve RUN`, with or without --engine.")
        kit = around.kit
        run = Path(around.options[RUN]) if kit is None else _run_of_kit(kit, plan)
        named = around.options if kit is None else _allowed_code(kit, run)
        model = ServedModel.of_run(
            run,
            ("bilateral", "serve", str(run)),
            data_dir=around.data_dir,
            data_settings=around.data_settings,
            model=named.get(MODEL),
            data=named.get(DATA),
            reveal=plan.reveal,
        )
        counts = run / FOLDER / UNIT if kit is None else _counters_of(kit, plan)
        counters = {name: FileCounter(counts / f"{name}.json", UNIT) for name in plan.clients}
        randomness: Randomness = SecureRandomness()
        pinned = _pinned(plan, kit)
        if kit is None:
            randomness = simulated(plan, "server")
        if missing := [name for name in plan.parties if name not in pinned]:
            raise PlanError(
                f"The server's kit pins no identity of {', '.join(missing)}.",
                remedy="Provision the deployment for this plan.",
            )
        return ServingRun(plan, around, around.sites, model, counters, pinned, randomness)

    def site(self, name: str, plan: ServingPlan, around: SiteAround) -> ServiceSite:
        if name not in plan.parties:
            raise PlanError(f"{name!r} has no part in this service; {', '.join(plan.parties)} have.")
        identity = simulated_identity(plan, name) if around.kit is None else _identity_of(around.kit)
        pinned = _pinned(plan, around.kit)
        if name == plan.dealer:
            draws = SecureRandomness() if around.kit is not None else simulated(plan, "dealer")
            return DealingSite(plan, AnswerDealer(name, identity, pinned, draws), around.version)
        return AskingDoor(name, plan, around.version, _door_plate(name, plan, around, pinned))


def simulated(plan: ServingPlan, *labels: str) -> Randomness:
    """What a party of a simulation draws from."""
    return SeededRandomness(plan.seed, "serving", *labels)


def simulated_identity(plan: ServingPlan, name: str) -> Identity:
    return Identity.generate(simulated(plan, "identity", name))


def _pinned(plan: ServingPlan, kit: KitAround | None) -> dict[str, bytes]:
    """Of those who have a part in the plan, and of nobody else in the deployment."""
    if kit is None:
        return {name: simulated_identity(plan, name).public_bytes for name in plan.parties}
    return {name: key for name, key in kit.pinned.items() if name in plan.parties}


def _door_plate(
    name: str, plan: ServingPlan, around: SiteAround, pinned: Mapping[str, bytes]
) -> Callable[[int, bytes], None]:
    """Writes the file by which `bilateral ask` finds the door. In a kit it names the file of the identity key."""
    folder = around.store if around.kit is None else around.kit.folder / DOOR_FOLDER
    if folder is None:
        raise PlanError(f"{name} has no directory for its door.")
    needed = {one: pinned[one].hex() for one in (name, plan.dealer) if one in pinned}
    key_file = "" if around.kit is None else os.path.relpath(_key_file(around.kit), folder)

    def put_up(port: int, token: bytes) -> None:
        secret = simulated(plan, "identity", name).random_bytes(KEY_BYTES).hex() if around.kit is None else ""
        write_kit(folder, Kit(name, plan.dealer, port, token.hex(), secret, needed, key_file))

    return put_up


def _key_file(kit: KitAround) -> Path:
    if kit.key_file is None:
        raise DeploymentError("The kit has no identity key.", remedy="Only sites have one.")
    return kit.key_file


def _identity_of(kit: KitAround) -> Identity:
    if kit.identity is None:
        raise DeploymentError("The kit has no identity key.", remedy="Only sites have one.")
    return kit.identity


def _run_of_kit(kit: KitAround, plan: ServingPlan) -> Path:
    if kit.runs is None:
        raise DeploymentError("The kit has no runs.", remedy="Only a server has.")
    return kit.runs / plan.run


def _counters_of(kit: KitAround, plan: ServingPlan) -> Path:
    """Made with the kit, for each run and client once; no job makes one."""
    if kit.counters is None:
        raise DeploymentError("The kit has no counters.", remedy="Get a kit from `bilateral deploy`.")
    return kit.counters / QUESTIONS / plan.run


def _allowed_code(kit: KitAround, run: Path) -> dict[str, str]:
    """Functions that the run names, if the server's operator has allowed each."""
    named = code_of(RunDirectory.open(run, load_plan)[1])
    own = [name for name in named.values() if name not in kit.code]
    if own:
        names = ", ".join(f'"{name}"' for name in own)
        raise PlanNotAcceptedError(
            f"The run that is to be served names {names}, which this server's operator has not allowed.",
            remedy=f"If the operator has read that code and installed it here, add {names} to `allowed` under [code].",
        )
    return named


KIND = ServingKind()
