"""How each error of the catalogue comes about: a few lines of a user's, each of which really raises it.

The reference page shows the messages that these raise; tests/tools/test_error_examples.py holds them to what an error
has to say. A new class in `bilateral.errors` without an example fails that test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

import bilateral
from bilateral import (
    Cohort,
    CohortServer,
    CohortSite,
    Identity,
    KeyRing,
    MaskClient,
    MaskServer,
    MaskSettings,
    PerturbationSettings,
    RunPlan,
    ScaleGraph,
    SecureRandomness,
)
from bilateral import errors as e
from bilateral.audit.audited_half import audited
from bilateral.engine.flare.site_settings import load_site_settings
from bilateral.engine.run_directory import RunDirectory
from bilateral.protocols.mask.messages import MaskedUpload
from bilateral.protocols.messages import Upload
from bilateral.protocols.noise.round_counter import MemoryCounter
from bilateral.protocols.wire import decode, encode
from bilateral.runs.rounds.attendance import Attendance
from bilateral.serving.folder import Kit
from bilateral.serving.here import simulated_session
from bilateral.serving.model import ServedModel
from bilateral.serving.server import Conditions

NAMES: Final = ("anna", "bela", "cleo", "dora")
SMALL: Final[Mapping[str, Any]] = {
    "data.name": "breast-cancer",
    "model.name": "mlp-3",
    "model.options": {"width": 4},
    "federation.clients": 2,
    "training.rounds": 1,
}


@dataclass(frozen=True)
class Example:
    """`raises` is called in an empty folder. `says`: parts of its message, by which a reader knows what happened."""

    raises: Callable[[], object]
    says: tuple[str, ...]


def _plan(**settings: Any) -> RunPlan:
    return RunPlan().with_settings({**SMALL, **{name.replace("__", "."): value for name, value in settings.items()}})


def _small_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def _cohort() -> tuple[Cohort, dict[str, CohortSite]]:
    identities = {name: Identity.generate() for name in NAMES}
    cohort = Cohort({name: identity.public_bytes for name, identity in identities.items()})
    return cohort, {name: CohortSite(cohort, identity, lambda t: (t, 1)) for name, identity in identities.items()}


def _a_hook_that_a_trace_does_not_show() -> object:
    network = _small_network()
    graph = ScaleGraph.of(network, torch.randn(2, 4))
    network.register_forward_hook(lambda _module, _inputs, outputs: 2 * outputs)
    return bilateral.check_recovery(network, graph, PerturbationSettings(), torch.randn(4, 4))


def _too_few_sites() -> object:
    cohort, sites = _cohort()
    server = CohortServer(cohort, lambda packets: {n: sites[n].answer(d) for n, d in packets.items() if n < "c"})
    return server.mean({"x": torch.zeros(2)})


def _a_site_that_masks_something_else() -> object:
    cohort, sites = _cohort()

    def carry(packets: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {name: sites[name].answer(data) for name, data in packets.items()}
        if b'"MaskedUpload"' in answers["bela"]:
            message = decode(answers["bela"], [MaskedUpload], "bela")
            answers["bela"] = encode(replace(message, values=message.values + (1 << 50)))
        return answers

    return CohortServer(cohort, carry).mean({"x": torch.zeros(2)})


def _masking() -> tuple[MaskServer, dict[str, MaskClient]]:
    run_id, settings = SecureRandomness().random_bytes(32), MaskSettings()
    identities = {name: Identity.generate() for name in NAMES}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    server = MaskServer(run_id, NAMES, settings, pinned=pinned)
    rings = {name: KeyRing(name, run_id, identity, pinned) for name, identity in identities.items()}
    for name, ring in rings.items():
        server.register(name, ring.announce())
    for ring in rings.values():
        ring.accept(server.roster())
    return server, {name: MaskClient(ring, settings) for name, ring in rings.items()}


def _shares_that_were_changed() -> object:
    server, clients = _masking()
    opening = server.open_round(0, NAMES, num_rows=2)
    for name, client in clients.items():
        server.collect_shares(name, client.open(opening))
    routed = server.route()["anna"]
    clients["anna"].receive_shares(replace(routed, sealed=(bytes(len(routed.sealed[0])), *routed.sealed[1:])))
    return None


def _a_question_too_many() -> object:
    bilateral.run(_plan(protection="fedavg"), output="out", reference=False)
    served = ServedModel.of_run(Path("out"), ("bilateral", "ask", "out"))
    session = simulated_session(served, Conditions(5, "class"), MemoryCounter(), SecureRandomness())
    session.open()
    return session.ask(torch.zeros(6, 30, dtype=torch.float64), "class")


def _a_plan_that_the_operator_has_not_accepted() -> object:
    Path("bilateral.toml").write_text("[plans]\naccepted = []\n", encoding="utf-8")
    load_site_settings(Path()).check_fingerprint(_plan().fingerprint())
    return None


def _a_directory_that_another_process_writes_to() -> object:
    bilateral.run(_plan(protection="fedavg"), output="out", reference=False)
    with RunDirectory(Path("out")).locked():
        return bilateral.run(_plan(protection="fedavg"), output="out", resume=True)


def _not_a_number() -> object:
    good = Upload(0, 1, torch.zeros(1, 3), torch.zeros(0))
    return bilateral.aggregate({"anna": good, "bela": replace(good, terms=torch.full((1, 3), float("nan")))}, 0)


def _a_target_too_few() -> object:
    whole = bilateral.load_dataset("breast-cancer").train
    data = {"north": whole, "south": (whole.inputs[:50], whole.targets[:49])}
    return bilateral.run(model=nn.Sequential(nn.Linear(30, 4), nn.ReLU(), nn.Linear(4, 2)), data=data)


def _inputs_unlike_the_servers() -> object:
    """The server tries a step on its own examples first; what is far larger at the sites ends the step itself."""
    torch.manual_seed(0)
    wine = bilateral.load_dataset("wine").train
    large, small = (bilateral.Split(scale * wine.inputs, wine.targets) for scale in (10.0, 1e-4))
    plan = RunPlan().with_settings({"protection": "sealed", "training.rounds": 6, "training.learning_rate": 5.0})
    network = nn.Sequential(nn.Linear(13, 4), nn.ReLU(), nn.Linear(4, 3))
    data = dict.fromkeys(("north", "south", "west"), large)
    return bilateral.run(plan, model=network, data=data, test=small, save=False, reference=False)


EXAMPLES: Final[dict[type[e.BilateralError], Example]] = {
    e.ArgumentError: Example(lambda: bilateral.run("plan.toml"), ("`plan`", "a RunPlan", "got str")),  # type: ignore[arg-type]
    e.PlanError: Example(lambda: _plan(training__rounds=0), ("training.rounds", "got 0")),
    e.PlanNotAcceptedError: Example(
        _a_plan_that_the_operator_has_not_accepted, ("fingerprint", "not among", "[plans]")
    ),
    e.UnsoundPlanError: Example(
        lambda: bilateral.privacy_of(
            _plan(perturbation__softmax="blinded", noise__mechanism="sound", noise__epsilon=8.0)
        ),
        ("softmax", "local"),
    ),
    e.DataError: Example(_a_target_too_few, ("south", "50 inputs", "got 49")),
    e.MissingDataError: Example(lambda: bilateral.load_dataset("cifar10", Path("data")), ("cifar10", "data")),
    e.ModelError: Example(
        lambda: bilateral.inspect(nn.Linear(4, 2), torch.zeros(1, 4)), ("nn.Linear", "nn.Sequential")
    ),
    e.UnsupportedLayerError: Example(
        lambda: ScaleGraph.of(
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.LocalResponseNorm(2), nn.Flatten(), nn.Linear(144, 2)),
            torch.zeros(1, 1, 8, 8),
        ),
        ("LocalResponseNorm `1`", "Supported: Linear"),
    ),
    e.RecoveryError: Example(_a_hook_that_a_trace_does_not_show, ("gradient", "hook")),
    e.ProtocolError: Example(
        lambda: _masking()[1]["anna"].mask(Upload(0, 1, torch.zeros(1, 3), torch.zeros(0)), context=b"a digest"),
        ("anna", "not asked for"),
    ),
    e.NumericalRangeError: Example(_not_a_number, ("bela", "`terms`", "NaN")),
    e.OutOfRangeError: Example(_inputs_unlike_the_servers, ("left its range", "Normalise the inputs")),
    e.MalformedMessageError: Example(lambda: _cohort()[1]["anna"].answer(b"GET / HTTP/1.1"), ("the server", "packet")),
    e.AuthenticationError: Example(
        lambda: CohortSite(_cohort()[0], Identity.generate(), lambda tensors: (tensors, 1)),
        ("anna, bela", "public key"),
    ),
    e.SealedShareError: Example(_shares_that_were_changed, ("anna", "bela")),
    e.ThresholdError: Example(_too_few_sites, ("3 or more", "got 2")),
    e.LostSumError: Example(_a_site_that_masks_something_else, ("total weight", "next round")),
    e.QuestionLimitError: Example(_a_question_too_many, ("6", "5")),
    e.NotAuditableError: Example(lambda: audited(object()), ("`secrets`", "AuditedServer")),  # type: ignore[arg-type]
    e.CheckpointError: Example(lambda: bilateral.load_exported("nowhere.safetensors"), ("nowhere.safetensors",)),
    e.DirectoryInUseError: Example(_a_directory_that_another_process_writes_to, ("out", "another process")),
    e.DeploymentError: Example(lambda: Kit.read(Path("nowhere")), ("nowhere",)),
    e.SitesMissingError: Example(
        lambda: Attendance((), lambda _: None, lambda _: None, needed=2, patience=0.0).gather(0, ["north", "south"]),
        ("needs 2 sites", "0 are there"),
    ),
}
"""Of every class but the base, which is raised by none."""


def message_of(kind: type[e.BilateralError], folder: Path) -> e.BilateralError:
    """The error that its example raises, in an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        try:
            EXAMPLES[kind].raises()
        except e.BilateralError as error:
            return error
    raise AssertionError(f"the example of {kind.__name__} raised nothing")
