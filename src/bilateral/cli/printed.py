"""What commands print with `--json`, as types: the schemas of `bilateral schema` are made of these.

`tools/write_package_data.py` writes them to `cli/schemas`, and a test runs every command and holds what it prints
against its file. Where a dataclass is printed as it is, the dataclass is named here. No command imports this.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NotRequired, TypeAlias

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from bilateral.audit.auditor import Skipped
from bilateral.audit.evidence import Curve, Gate
from bilateral.audit.scores import Metric
from bilateral.cli.doctor import Check
from bilateral.cli.explain import Cost
from bilateral.engine.run_status import Spending
from bilateral.engine.run_story import RunState, SiteState
from bilateral.engine.suitability import Suitability
from bilateral.learning.aggregation import Incident
from bilateral.protections.ladder import Rung
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.noise.accounting import ReportRow
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.report.run_page.questions import Answer
from bilateral.reproduce.tables import Differs, Finding
from bilateral.runs.rounds.result import FailedRound
from bilateral.runs.rounds.seen_by_clients import SeenByClients

Metrics: TypeAlias = dict[str, float]


class PlanWritten(TypedDict):
    """With `--write-plan`."""

    plan: str


class Traffic(TypedDict):
    """What one party sent or received of one kind of message."""

    party: str
    direction: str
    message: str
    megabytes: float


class CoveredParameter(TypedDict):
    """One parameter of a model under perturbation: numbers of elements."""

    name: str
    kind: str
    shape: list[int]
    elements: int
    scaled: int
    movable: int
    clear: int
    remark: str


class DrawnLayer(TypedDict):
    """A layer, or a place where several meet; `inputs` names those before it. `frozen`: numbers that do not learn."""

    name: str
    kind: str
    elements: int
    frozen: int
    inputs: list[str]


class Coverage(TypedDict):
    """What perturbation hides of a model."""

    head: str
    outputs: int
    parameters: int
    fraction_clear: float
    scale_factors: int
    hidden_channels: int
    movable_channels: int
    rows: list[CoveredParameter]


class Run(TypedDict):
    """`bilateral run`: a finished run, or one that was stopped."""

    metric: str
    metric_value: float
    metrics: Metrics
    best_round: int | None
    per_class: dict[str, Metrics]
    per_site: dict[str, Metrics]
    told_by_sites: dict[str, Metrics]
    warnings: list[str]
    metrics_of_fedavg: Metrics | None
    yardstick: str
    rounds: int
    finished: bool
    seconds: float
    megabytes_up: float
    megabytes_down: float
    traffic: list[Traffic]
    network: list[DrawnLayer]
    coverage: Coverage | None
    recovery_error: float | None
    difference_to_fedavg: float | None
    final_difference_to_fedavg: float | None
    client_view: SeenByClients | None
    dealer: str | None
    rounds_failed: list[FailedRound]
    incidents: list[Incident]
    privacy: PrivacyReport | None
    ladder: Rung | None
    guarantee: Guarantee
    output: str | None


class HeteroRow(TypedDict):
    """One architecture, or all clients."""

    dataset: str
    clients: int
    architecture: str
    method: str
    queries: int | None
    fraction: float
    accuracy_before: float | None
    accuracy_after: float | None
    seed: int
    alpha: float | None
    selection: str
    normalisation: str


class HeteroClient(TypedDict):
    """One client: accuracies before the first exchange and after each."""

    client: str
    architecture: str
    samples: int
    queries: int | None
    accuracies: list[float]


class Hetero(TypedDict):
    """`bilateral hetero`."""

    rows: list[HeteroRow]
    clients: list[HeteroClient]
    answers: str
    guarantee: Guarantee
    iterations: int
    answerers: int
    stages_done: int
    stages: int
    finished: bool
    seconds: float
    output: str | None


class Figure(TypedDict):
    """One metric of one attack."""

    value: float | None
    interval: list[float | None]
    median: float | None
    trials: int


class Control(Figure):
    """The same attack where it must succeed, or must fail."""

    what: str
    metric: str
    others: dict[str, Figure]


class VerdictRow(TypedDict):
    """One attack, or a claim that was not tested: then what belongs to an attack is null or left out."""

    claim: str
    claimed_by: str
    tests: str | int
    whom: str
    adversary: str | None
    attack: str | None
    adaptive: bool | None
    seen: NotRequired[str]
    metric: str | None
    value: float | None
    interval: list[float | None] | None
    median: NotRequired[float | None]
    trials: NotRequired[int]
    others: NotRequired[dict[str, Figure]]
    positive_control: Control | None
    negative_control: Control | None
    gates: NotRequired[list[str]]
    verdict: str
    reason: str
    p_value: float | None
    bound: NotRequired[float | None]
    claim_verdict: str
    claim_reason: str


class Scores(TypedDict):
    """All trials of one metric."""

    metric: Metric
    values: list[float | str]
    given_interval: list[float | str] | None


class Condition(TypedDict):
    """An attack under one condition."""

    what: str
    scores: list[Scores]


class Fresh(TypedDict):
    """The same attack on other seeds."""

    runs: int
    target: Condition | None
    positive: Condition | None
    negative: Condition | None


class Evidence(TypedDict):
    """What an experiment handed in: raw figures."""

    tests: str | int
    adversary: str
    attack: str
    adaptive: bool
    seen: str
    paired: bool
    bound: float | None
    remark: str
    target: Condition
    positive: Condition | None
    negative: Condition | None
    gates: list[Gate]
    curves: list[Curve]
    fresh: NotRequired[Fresh]


class Audit(TypedDict):
    """`bilateral audit`."""

    verdicts: list[VerdictRow]
    protection: str
    plan: dict[str, Any]
    effort: str
    seconds: float
    finished: bool
    style: str | None
    only: list[str]
    skipped: list[Skipped]
    guarantee: Guarantee
    evidence: list[Evidence]


class ExperimentName(TypedDict):
    """One experiment of an audit."""

    name: str
    title: str


class Experiments(TypedDict):
    """With `--list`."""

    experiments: list[ExperimentName]


class LeakagePage(TypedDict):
    """`bilateral leakage-page`. `page` is the text itself where no `--output` was named."""

    audits: list[str]
    output: str | None
    page: str | None


class Report(TypedDict):
    """`bilateral report`."""

    page: str
    bytes: int


class WatchedSite(TypedDict):
    """One site of a run."""

    site: str
    state: SiteState
    rounds: int
    misses: int
    refused: int
    last_trouble_time: str | None
    last_trouble_round: int | None
    last_trouble_stage: str | None
    last_trouble_reason: str | None


class WatchedEvent(TypedDict):
    """One line of the event log; what else there is depends on `event`."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    time: str
    event: str


class Watch(TypedDict):
    """`bilateral watch`. Of `history`: the round, and metrics by their names."""

    directory: str
    kind: str
    data: str
    model: str
    state: RunState
    reason: str
    engine: str
    term: int
    round: int
    num_rounds: int
    rounds_failed: int
    seconds_per_round: float | None
    seconds_left: float | None
    seconds_since_event: float | None
    metrics: Metrics
    difference_to_fedavg: float | None
    history: list[dict[str, float]]
    privacy: list[Spending]
    sites: list[WatchedSite]
    events: list[WatchedEvent]
    lines_unreadable: int


class Deploy(TypedDict):
    """`bilateral deploy`: where the kits are, by party."""

    directory: str
    fingerprint: str
    server_kit: str
    site_kits: dict[str, str]
    admin_kit: str
    plan: str
    handbook: str
    warnings: list[str]


class Submitted(TypedDict):
    """With `--detach`: a job that was handed over."""

    run: str
    job: str | None


class SubmittedRun(Run):
    """A run of rounds on a deployment that was looked after to its end."""

    job: str | None
    run: str


class Service(TypedDict):
    """A service over FLARE that has ended."""

    run: str
    questions: dict[str, int]
    limit: int
    reveal: str
    dealer: str
    rounds: int
    finished: bool
    seconds: float
    guarantee: Guarantee
    output: str | None


class SubmittedService(Service):
    """The same on a deployment."""

    job: str | None


class SubmittedHetero(Hetero):
    """A run of clients with different networks on a deployment."""

    job: str | None
    run: str


class Sites(TypedDict):
    """`bilateral sites`."""

    sites: list[str]


class Ladder(TypedDict):
    """`bilateral ladder`."""

    ladder: list[Rung]


class New(TypedDict):
    """`bilateral new`."""

    folder: str
    files: list[str]


class Explain(TypedDict):
    """`bilateral explain`."""

    kind: str
    data: str
    model: str
    steps: int
    questions: list[Answer]
    guarantee: Guarantee
    privacy: PrivacyReport | None
    cost_of_a_round: Cost | None


class Doctor(TypedDict):
    """`bilateral doctor`."""

    ready: bool
    checks: list[Check]


class ComparedLane(TypedDict):
    """One protection in one case."""

    dataset: str
    model: str
    model_options: dict[str, Any]
    clients: int
    loss: str
    partitions: int
    rounds: int
    protection: str
    seed: int
    metric: str
    metric_value: float
    metrics: Metrics
    weights_relative_difference: float
    seconds_ratio: float
    curve: list[tuple[int, float]]
    local_work: str
    megabytes: float
    rounds_to_fedsgd: int | None
    megabytes_to_fedsgd: float | None
    bytes_ratio: float


class Compare(TypedDict):
    """`bilateral compare`."""

    rows: list[ComparedLane]


class OnlyTakers(TypedDict):
    """Of a network that perturbation refuses: which protections take it."""

    protections: list[Suitability]


class Inspect(Coverage):
    """`bilateral inspect` of a network that perturbation takes."""

    protections: list[Suitability]


class Privacy(TypedDict):
    """`bilateral privacy`. `status` is none where the plan adds no noise; then there is no unit."""

    mechanism: str
    rounds: int
    status: Literal["none", "sound", "published, conditional"]
    unit: NotRequired[str]
    deviations: NotRequired[dict[str, float]]
    rows: list[ReportRow]


class Export(TypedDict):
    """`bilateral export`."""

    output: str
    model: str
    metrics: Metrics


class Predict(TypedDict):
    """`bilateral predict`."""

    samples: int
    metrics: Metrics
    output: str | None


class Serve(TypedDict):
    """`bilateral serve`: printed when it is ready; it then goes on."""

    model: str
    dataset: str
    protection_of_run: str
    port: int
    reveal: str
    questions: int
    used: dict[str, int]
    dealer: str
    dealer_here: bool
    kits: dict[str, str]
    identities_drawn_by: Literal["server"]
    guarantee: Guarantee


class QuestionsAsked(TypedDict):
    """Of this client, ever."""

    used: int
    limit: int


class Ask(TypedDict):
    """`bilateral ask`."""

    samples: int
    reveal: str
    first_sample: int
    predicted: list[str]
    outputs: list[list[float]] | None
    metrics: Metrics
    questions: QuestionsAsked | None
    simulation: bool
    output: str | None
    guarantee: Guarantee


class Deal(TypedDict):
    """`bilateral deal`, when the server has stopped."""

    dealer: str
    questions_dealt: int


class ReproducedRow(TypedDict):
    """A piece of work that is done."""

    row: str
    seconds: float


class ReproducedCell(TypedDict):
    """One figure: the paper's and ours."""

    dataset: str
    model: str
    method: str
    setting: str
    metric: str
    paper: float | None
    paper_id: str
    ours: float | None
    spread: float | None
    seeds: int
    word: str


class ReproducedTable(TypedDict):
    """One table of a paper."""

    table: str
    paper: str
    title: str
    scale: str
    finished: bool
    seconds: float
    rows: list[ReproducedRow]
    cells: list[ReproducedCell]
    findings: list[Finding]
    differs: list[Differs]
    notes: list[str]
    missing: list[str]


class Reproduce(TypedDict):
    """`bilateral reproduce`."""

    tables: list[ReproducedTable]


class TableName(TypedDict):
    """One table that can be reproduced."""

    name: str
    title: str
    needs: list[str]


class TableList(TypedDict):
    """With `--list`."""

    tables: list[TableName]


class PageWritten(TypedDict):
    """With `--page` or `--summary`."""

    page: str


class Bench(TypedDict):
    """`bilateral bench`: what a row has depends on the benchmark."""

    bench: str
    rows: list[dict[str, Any]]


PRINTED: Final[dict[str, Any]] = {
    "run": Run | PlanWritten | Hetero,
    "hetero": Hetero | PlanWritten,
    "audit": Audit | Experiments,
    "leakage-page": LeakagePage,
    "report": Report,
    "watch": Watch,
    "deploy": Deploy,
    "submit": SubmittedRun | SubmittedHetero | SubmittedService | Submitted,
    "sites": Sites,
    "ladder": Ladder,
    "new": New,
    "explain": Explain,
    "doctor": Doctor,
    "compare": Compare,
    "inspect": Inspect | OnlyTakers,
    "privacy": Privacy,
    "export": Export,
    "predict": Predict,
    "serve": Serve | Service | PlanWritten,
    "ask": Ask,
    "deal": Deal,
    "reproduce": Reproduce | TableList | PageWritten,
    "bench": Bench,
}
"""By command. Several: which one is printed, options decide. Kinds of run from other packages print what they like."""


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints. Nothing is optional but what says so, and nothing else is there."""
    found = TypeAdapter(PRINTED[command]).json_schema()
    _close(found)
    title = f"bilateral {command} --json"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": title}


def _close(part: Any) -> None:
    """Objects have just the members that are named: a default of a dataclass is printed as well."""
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _close(inner)
    if isinstance(part, dict) and isinstance(part.get("properties"), dict):
        optional = {name for name in part["properties"] if name not in part.get("required", ())}
        defaults = {name for name in optional if "default" in part["properties"][name]}
        for name, inner in part["properties"].items():
            inner.pop("title", None)  # the name, with capitals
            if name in defaults:
                del inner["default"]
        part["required"] = sorted({*part.get("required", ()), *defaults})
        part.setdefault("additionalProperties", False)
