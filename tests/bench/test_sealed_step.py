"""`bilateral bench sealed-step`: what its rows say, and that three real processes compute the gradient."""

import json
from contextlib import nullcontext

import pytest
import torch
from typer.testing import CliRunner

import bilateral.bench.sealed_step as bench
from bilateral.bench import processes
from bilateral.bench.gate_clock import BIT_PRODUCT, COMPARISON, GATES, REST, WATCHING, GateClock
from bilateral.bench.metering import PartyCost, PhaseCost
from bilateral.bench.party import Setup
from bilateral.bench.sealed_step import AHEAD, ALL, PIPELINED, TOTAL, MeasuredSteps, SealedStep, case_rows
from bilateral.bench.step_networks import NETWORKS
from bilateral.bench.step_party import (
    CLIENT,
    DEALER,
    DEALING,
    MAY_HEAR,
    PHASES,
    PREPARING,
    STEP,
    Batch,
    DealtForStep,
    GateCosts,
    MaskedWeights,
    StepTask,
)
from bilateral.bench.step_server import PARTIES, StepCost, StepWork, step_server
from bilateral.cli.main import app
from bilateral.cli.sealed_step import step_tables
from bilateral.errors import DeploymentError, PlanError
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.training.parties import encode_batch
from bilateral.protocols.share.training.roles import Dealing, First, FirstModel, Second, weight_masks
from bilateral.protocols.share.training.script import run, step
from bilateral.protocols.transport import SERVER

KEYS = [
    "model", "loss", "batch_size", "phase", "seconds", "megabytes", "rounds", "party", "relative_error",
    "ratio_to_plain",
]  # fmt: skip
SMALL = ("mlp-tab", "mse", 6)


@pytest.fixture(scope="module")
def server():
    with step_server(1) as started:
        yield started


@pytest.fixture(scope="module")
def work():
    return StepWork.of(NETWORKS[SMALL[0]], SMALL[1], SMALL[2])


def made_up(scale):
    """A step whose phases take 1, 2 and 4 seconds times `scale`."""
    phases = {}
    for phase, seconds in zip(PHASES, (1.0, 2.0, 4.0), strict=True):
        costs = {
            SERVER: PartyCost(0.5 * seconds, 0.6 * seconds, 750_000, 4_000_000),
            CLIENT: PartyCost(0.3 * seconds, 0.4 * seconds, 3_000_000, 250_000),
            DEALER: PartyCost(0.1 * seconds, 0.2 * seconds, 1_000_000, 500_000),
        }
        phases[phase] = PhaseCost(seconds * scale, 3, costs)
    seconds = torch.zeros(len(PHASES), len(GATES), dtype=torch.float64)
    seconds[PHASES.index(STEP), GATES.index(COMPARISON)] = 0.5
    told = torch.zeros(len(PHASES), len(GATES), dtype=torch.int64)
    told[PHASES.index(STEP), GATES.index(COMPARISON)] = 2_000_000
    gates = dict.fromkeys(PARTIES, GateCosts(seconds, told))
    return StepCost(7.5 * scale, phases, gates, torch.zeros(1), 800_000, dict.fromkeys(PARTIES, 10_000_000))


def rows_of(scales=(1.0,)):
    steps = [made_up(scale) for scale in scales]
    at_once = [made_up(scale) for scale in scales]
    measured = MeasuredSteps(steps, at_once, [made_up(1.0) for _ in scales], [(0.5, 0.25)] * len(steps), 1e-5, 1e-6)
    return case_rows(SealedStep(), ("lenet", "ce", 32), measured)


def found(rows, phase, party):
    (row,) = [row for row in rows if (row["phase"], row["party"]) == (phase, party)]
    return row


def test_there_is_a_row_for_every_phase_and_party_with_what_the_issue_asks_for():
    rows = rows_of((1.0, 2.0, 10.0))
    assert len(rows) == 6 * 4
    assert all(set(KEYS) <= set(row) for row in rows)
    by_phase = {phase: found(rows, phase, ALL)["seconds"] for phase in bench.ROW_PHASES}
    assert by_phase == {DEALING: 2.0, PREPARING: 4.0, STEP: 8.0, TOTAL: 15.0, AHEAD: 12.0, PIPELINED: 7.5}
    total = found(rows, TOTAL, ALL)
    assert (total["seconds_p10"], total["seconds_p90"]) == pytest.approx((7.5 * 1.2, 7.5 * 8.4))
    assert total["megabytes"] == pytest.approx(3 * 4.75)
    assert (total["rounds"], total["relative_error"]) == (9, 1e-5)


def test_what_is_relayed_is_said_where_dealing_is_counted():
    rows = rows_of()
    assert found(rows, TOTAL, ALL)["megabytes_relayed"] == found(rows, DEALING, ALL)["megabytes_relayed"] == 0.8
    assert found(rows, AHEAD, ALL)["megabytes_relayed"] == found(rows, STEP, ALL)["megabytes_relayed"] == 0.0


def test_rows_of_a_party_are_its_seconds_on_a_core_and_its_traffic():
    row = found(rows_of((1.0, 3.0)), TOTAL, CLIENT)
    assert row["seconds"] == pytest.approx(0.3 * 7)
    assert row["busy_seconds"] == pytest.approx(0.4 * 7)
    assert (row["megabytes_sent"], row["megabytes_received"], row["megabytes"]) == pytest.approx((9, 0.75, 9.75))
    assert row["ratio_to_plain"] == pytest.approx(0.3 * 7 / 0.25)


def test_seconds_that_no_gate_is_charged_for_are_work_on_messages():
    step_row, total = (found(rows_of(), phase, SERVER) for phase in (STEP, TOTAL))
    assert step_row["seconds_by_gate"] == {**dict.fromkeys(GATES, 0.0), COMPARISON: 0.5, bench.MESSAGES: 1.5}
    assert sum(total["seconds_by_gate"].values()) == pytest.approx(total["seconds"])
    assert step_row["megabytes_by_gate"] == {COMPARISON: 2.0}


def test_the_ratio_to_plain_is_taken_step_by_step():
    total = found(rows_of((1.0, 2.0, 4.0)), TOTAL, ALL)
    assert total["ratio_to_plain"] == pytest.approx(30.0)
    assert total["ratio_to_plain_p90"] == pytest.approx(54.0)
    assert total["plain_seconds"] == 0.5


def test_the_tables_have_a_line_a_case_and_one_a_phase_and_party():
    costs, gates = step_tables(rows_of())
    cells = next(zip(*(list(column.cells) for column in costs.columns), strict=True))
    assert cells[:5] == ("lenet", "ce", "32", "7.5", "7.5-7.5")
    assert gates.row_count == 9


def test_the_cases_are_those_of_the_issue():
    assert SealedStep().cases == [
        ("mlp-tab", "mse", 64),
        ("mlp-a", "mse", 128),
        ("mlp-a", "ce", 128),
        ("lenet", "mse", 32),
        ("lenet", "mse", 128),
        ("lenet", "ce", 32),
        ("lenet", "ce", 128),
        ("resnet-8", "mse", 32),
        ("resnet-8", "ce", 32),
    ]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mlp-tab", [(64, 20), (64, 64), (1, 64)]),
        ("mlp-a", [(128, 784), (128, 128), (10, 128)]),
        ("lenet", [(20, 1, 5, 5), (50, 20, 5, 5), (100, 800), (10, 100)]),
    ],
)
def test_the_networks_have_the_layers_of_their_names(name, shapes):
    assert [tuple(p.shape) for p in NETWORKS[name].build().parameters() if p.ndim > 1] == shapes


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": ()},
        {"models": ("vgg-77",)},
        {"losses": ("l1",)},
        {"losses": ()},
        {"batch_sizes": (0,)},
        {"repeats": 0},
        {"threads": 0},
        {"models": ("mlp-tab",), "losses": ("ce",)},
    ],
)
def test_what_cannot_be_measured_is_refused(wrong):
    with pytest.raises(PlanError, match=r"Expected|no classes"):
        SealedStep(**wrong)


def test_only_the_client_hears_of_a_batch_and_of_masked_weights():
    assert {Batch, MaskedWeights} <= set(MAY_HEAR[CLIENT])
    assert not {Batch, MaskedWeights} & set(MAY_HEAR[DEALER])


def test_seeds_are_not_shown():
    assert "5ec4e7" not in repr(DealtForStep(1, b"5ec4e7", b"")) + repr(MaskedWeights(1, b"", b"5ec4e7", ()))


def test_a_task_says_the_public_facts_of_a_step(work):
    assert StepTask.of(work.terms).terms == work.terms


@pytest.mark.parametrize("at_once", [False, True])
def test_three_processes_agree_with_autograd_and_every_byte_is_counted_once(server, work, at_once):
    server.give(work)
    cost = server.step(at_once=at_once)
    assert work.relative_error(cost.words) < 1e-4
    assert work.relative_error_in_fixed_point(cost.words) < 1e-4
    for phase, spent in cost.phases.items():
        sent = sum(party.bytes_sent for party in spent.parties.values())
        assert sent == sum(party.bytes_received for party in spent.parties.values()) > 0
        assert spent.rounds >= 1
        for party in PARTIES:
            if not at_once:
                assert 0 <= spent.parties[party].busy_seconds <= spent.seconds + 1e-6
            # Nobody waits for another within a gate, so gates are no longer than all work.
            gates = float(cost.gates[party].seconds[PHASES.index(phase)].sum())
            assert gates <= spent.parties[party].cpu_seconds + 1e-3
    dealt = work.terms.shape_of_step.dealt_bytes
    from_dealer = sum(spent.parties[DEALER].bytes_sent for spent in cost.phases.values())
    assert dealt < from_dealer < dealt + 20_000
    assert 0 < cost.box_bytes < 1_000  # a seed, whatever the step
    weights = sum(8 * layer.weight.numel() for layer in work.layers)
    if not at_once:
        assert cost.phases[DEALING].parties[CLIENT].bytes_received == 0
        assert weights < cost.phases[PREPARING].parties[CLIENT].bytes_received < weights + 5_000


def test_what_is_told_by_gate_is_what_is_sent_but_for_frames_and_headers(server, work):
    server.give(work)
    cost = server.step()
    turns = cost.phases[STEP]
    for party in (SERVER, CLIENT):
        told = int(cost.gates[party].told_bytes[PHASES.index(STEP)].sum())
        assert told <= turns.parties[party].bytes_sent < told + 1_000 * max(turns.rounds, 60)
    dealt = int(cost.gates[DEALER].told_bytes[PHASES.index(DEALING)].sum())
    assert dealt == work.terms.shape_of_step.dealt_bytes


def test_no_step_uses_masks_of_another_one(server, work):
    server.give(work)
    costs = [server.step(), server.step(at_once=True), *server.steps_in_a_row(3)]
    assert all(work.relative_error(cost.words) < 1e-4 for cost in costs)
    orders = [tuple(cost.phases[phase].rounds for phase in (DEALING, PREPARING)) for cost in costs]
    # In a row, a step has a dealing of its own too; unless phase follows phase, the client hears of a step beforehand.
    assert orders == [(1, 1), *[(1, 2)] * 4]
    sent = [sum(p.bytes_sent for phase in cost.phases.values() for p in phase.parties.values()) for cost in costs]
    assert max(sent) - min(sent) < 20_000  # how what is said falls into messages is a matter of time


def test_traffic_is_linear_in_the_batch(server):
    def sent(batch_size):
        server.give(StepWork.of(NETWORKS["mlp-tab"], "mse", batch_size))
        cost = server.step()
        return sum(p.bytes_sent for phase in cost.phases.values() for p in phase.parties.values())

    small, middle, large = sent(64), sent(128), sent(192)
    assert large - middle == pytest.approx(middle - small, rel=0.1)


def test_a_wrong_gradient_would_be_seen(server, work):
    server.give(work)
    words = server.step().words
    words[0] += 1 << 40
    assert work.relative_error(words) > 1e-2


def test_the_command_measures_with_real_parties(server, monkeypatch):
    monkeypatch.setattr(bench, "step_server", lambda threads: nullcontext(server))
    words = ["bench", "sealed-step", "--model", "mlp-tab", "--loss", "mse", "--batch-size", "4", "--repeats", "2"]
    outcome = CliRunner().invoke(app, [*words, "--json", "--quiet"])
    assert outcome.exit_code == 0, outcome.output
    answer = json.loads(outcome.stdout)
    assert answer["bench"] == "sealed-step"
    wanted = {"model": "mlp-tab", "loss": "mse", "batch_size": 4, "party": "all", "phase": "total"}
    (row,) = [row for row in answer["rows"] if wanted.items() <= row.items()]  # what benchmarks/sealed_step.py reads
    assert set(KEYS) <= set(row)
    assert row["relative_error"] < 1e-4
    assert row["repeats"] == 2
    shown = CliRunner().invoke(app, [*words, "--quiet"])
    assert shown.exit_code == 0, shown.output
    assert "watching" in shown.stdout


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        (["recovery", "--loss", "ce"], "sealed-step"),
        (["secure-prediction", "--loss", "ce"], "sealed-step"),
        (["sealed-step", "--style", "sealed"], "secure-prediction"),
        (["recovery", "--repeats", "3"], "secure-prediction and sealed-step"),
    ],
)
def test_options_that_do_not_belong_together_are_refused_with_whose_they_are(words, owner):
    outcome = CliRunner().invoke(app, ["bench", *words])
    assert isinstance(outcome.exception, PlanError)
    assert owner in str(outcome.exception)


def test_a_party_that_fails_in_the_middle_is_an_error_with_what_it_wrote(work):
    with (
        pytest.raises(DeploymentError, match=r"(?s)The client party ended.*the box that dealer sealed does not open"),
        step_server(1) as started,
    ):
        processes.tell(started._switchboard, CLIENT, StepTask.of(work.terms), processes.Heard)
        processes.tell(started._switchboard, CLIENT, MaskedWeights(1, b"", b"", ()), Setup)


class TestGateClock:
    """Timers change nothing, and miss no gate."""

    def test_a_timed_step_is_the_same_to_the_last_integer(self, work):
        assert torch.equal(self.gradient(work, None), self.gradient(work, GateClock(PHASES)))

    def test_every_gate_of_a_step_is_charged(self):
        work = StepWork.of(NETWORKS["mlp-a"], "ce", 4)
        clock = GateClock(PHASES)
        self.gradient(work, clock)
        seconds, told = clock.take()
        charged = {gate for gate, one in zip(GATES, seconds.sum(dim=0).tolist(), strict=True) if one > 0}
        assert charged == set(GATES) - {"dealt"}
        assert {gate for gate, one in zip(GATES, told.sum(dim=0).tolist(), strict=True) if one} == charged - {REST}
        assert not clock.take()[0].any()

    def test_gates_within_a_gate_are_charged_for_themselves_but_not_within_watching(self, monkeypatch):
        now = iter(range(100))
        monkeypatch.setattr("bilateral.bench.gate_clock.time.process_time", lambda: float(next(now)))
        clock = GateClock(PHASES)
        with clock.at(BIT_PRODUCT), clock.at(COMPARISON):
            pass
        with clock.at(WATCHING), clock.at(COMPARISON) as charged:
            assert charged == WATCHING
        seconds, _ = clock.take()
        spent = dict(zip(GATES, seconds[0].tolist(), strict=True))
        assert (spent[BIT_PRODUCT], spent[COMPARISON], spent[WATCHING]) == (2.0, 1.0, 3.0)

    @staticmethod
    def gradient(work, clock):
        seeds = [bytes([number]) * 32 for number in range(3)]
        terms, role = work.terms, Dealing(work.terms, (seeds[0], seeds[1]))

        def walk(role, *values):
            if clock is None:
                return step(role, *values)
            clock.attach(role)
            return clock.walk(REST, step(role, *values))

        run(walk(role, None, None))
        model = FirstModel.of(terms, work.layers, work.limits)
        masked = [layer.weight + weight_masks(terms, seeds[0], n) for n, layer in enumerate(work.layers)]
        first = First(terms, model, role.dealt, seeds[0], seeds[2], DEALER)
        second = Second(terms, masked, seeds[1], seeds[2])
        speakers = (
            Speaker(walk(first, None, None), CLIENT),
            Speaker(walk(second, *encode_batch(terms, work.inputs, work.targets)), SERVER),
        )
        while not all(speaker.is_done for speaker in speakers):
            for told, heard in (speakers, speakers[::-1]):
                heard.hear(told.take_told(), must_lead=False)
        return speakers[0].result + speakers[1].result
