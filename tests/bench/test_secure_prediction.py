"""`bench secure-prediction`: its arithmetic on costs made up here, and small networks in three real processes."""

import json
import socket
import threading
from contextlib import closing, nullcontext, suppress

import psutil
import pytest
import torch
from typer.testing import CliRunner

import bilateral.bench.secure_prediction as bench
from bilateral.bench import party as party_module
from bilateral.bench import processes
from bilateral.bench.metering import PartyCost, PhaseCost
from bilateral.bench.party import CostRequest, Heard, Introduction
from bilateral.bench.prediction_party import (
    ANSWERING,
    MAY_HEAR,
    MAY_SAY,
    QUERYING,
    Network,
    PredictionParty,
    Queries,
    images,
)
from bilateral.bench.secure_prediction import (
    Measured,
    SecurePrediction,
    case_rows,
    measure_secure_prediction,
    on_a_slow_link,
)
from bilateral.bench.three_parties import CLIENTS, BatchCost, three_parties
from bilateral.cli.main import app
from bilateral.cli.secure_prediction import prediction_table
from bilateral.engine.remote.loopback import HOST, Connection, LostConnectionError
from bilateral.errors import BilateralError, DeploymentError, PlanError
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.prediction.messages import (
    FROM_ANSWERER,
    FROM_QUERIER,
    PHASES,
    TO_ANSWERER,
    TO_QUERIER,
    Acknowledged,
    SessionEnd,
)
from bilateral.protocols.transport import SERVER

HANG = 900.0
SHAPE = (3, 8, 8)
SMALL = Network("convnet", SHAPE, 10, json.dumps({"width": 4}), seed=3)
KEYS = [
    "model", "batch_size", "phase", "party", "seconds_per_prediction", "megabytes_per_prediction", "rounds",
    "max_logit_error",
]  # fmt: skip


@pytest.fixture(scope="module")
def parties():
    before = len(children())  # three others may be there
    with three_parties("sealed", 1) as started:
        assert len(children()) == before + 2
        yield started


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    """Three who keep what is dealt ahead."""
    with three_parties("sealed", 1, str(tmp_path_factory.mktemp("dealt"))) as started:
        yield started


def children():
    """Without Python's own resource tracker, which any earlier test with processes leaves behind for good."""
    found = psutil.Process().children(recursive=True)
    return [child for child in found if not any("resource_tracker" in word for word in child.cmdline())]


def made_up(scale):
    """A batch whose phases take 1, 2 and 4 seconds times `scale`."""
    phases = {}
    for phase, seconds in zip(PHASES, (1.0, 2.0, 4.0), strict=True):
        costs = {
            QUERYING: PartyCost(0.1 * seconds, 0.2 * seconds, 1_000_000, 500_000),
            ANSWERING: PartyCost(0.3 * seconds, 0.4 * seconds, 3_000_000, 250_000),
            SERVER: PartyCost(0.5 * seconds, 0.6 * seconds, 750_000, 4_000_000),
        }
        phases[phase] = PhaseCost(seconds * scale, 3, costs)
    return BatchCost(torch.zeros(4, 10), phases, {QUERYING: 10_000_000, ANSWERING: 20_000_000, SERVER: 30_000_000})


def found(rows, phase, party, style="sealed"):
    (row,) = [row for row in rows if (row["phase"], row["party"], row["style"]) == (phase, party, style)]
    return row


def rows_of(batch_size, batches, ahead=(), others=()):
    """Of a case in the sealed style, beside hardened batches if there are any."""
    measured = {"sealed": Measured(list(batches), list(ahead or batches), 1e-6)}
    if others:
        measured["hardened"] = Measured(list(others), list(others), 1e-6)
    return [
        row
        for style, one in measured.items()
        for row in case_rows(SecurePrediction(), style, "vgg-7", batch_size, one, measured)
    ]


def test_rows_are_costs_of_one_prediction_and_offline_includes_the_session():
    rows = rows_of(4, [made_up(1.0), made_up(2.0), made_up(10.0)])
    assert len(rows) == 16
    assert all(set(KEYS) <= set(row) for row in rows)
    offline, online, total = (found(rows, phase, "all") for phase in ("offline", "online", "total"))
    assert [row["seconds_per_prediction"] for row in (offline, online, total)] == pytest.approx([1.5, 2.0, 3.5])
    assert total["seconds_p10"] == pytest.approx((7 * 1.0 + 0.2 * 7) / 4)
    assert total["seconds_p90"] == pytest.approx((14 + 0.8 * 56) / 4)
    assert [row["megabytes_per_prediction"] for row in (offline, online, total)] == pytest.approx(
        [2 * 4.75 / 4, 4.75 / 4, 3 * 4.75 / 4]
    )
    assert total["megabytes_per_prediction_later_batches"] == pytest.approx(2 * 4.75 / 4)
    assert total["seconds_per_prediction_later_batches"] == pytest.approx(2 * 6.0 / 4)
    assert (offline["rounds"], online["rounds"], total["rounds"]) == (6, 3, 9)
    assert total["peak_memory_megabytes"] == pytest.approx(60)


def test_rows_of_a_party_are_its_seconds_on_a_core_and_its_traffic():
    rows = rows_of(2, [made_up(1.0)])
    row = found(rows, "total", ANSWERING)
    assert row["seconds_per_prediction"] == pytest.approx(0.3 * 7 / 2)
    assert row["busy_seconds_per_prediction"] == pytest.approx(0.4 * 7 / 2)
    assert (row["megabytes_sent"], row["megabytes_received"]) == pytest.approx((9 / 2, 0.75 / 2))
    assert row["megabytes_per_prediction"] == pytest.approx(9.75 / 2)
    assert row["peak_memory_megabytes"] == pytest.approx(20)


def test_the_table_has_the_goal_and_the_papers_figures_beside_ours():
    cells = [list(column.cells) for column in prediction_table(rows_of(1, [made_up(1.0)])).columns]
    assert next(zip(*cells, strict=True))[:7] == ("vgg-7", "sealed", "1", "7", "7-7", "0.17", "1.03")


def test_the_ratio_to_hardened_is_taken_batch_by_batch_and_only_of_the_total():
    sealed, hardened = [made_up(1.0), made_up(6.0), made_up(9.0)], [made_up(2.0), made_up(3.0), made_up(3.0)]
    rows = rows_of(1, sealed, others=hardened)
    assert found(rows, "total", "all")["ratio_to_hardened"]["median"] == pytest.approx(2.0)
    assert found(rows, "total", "all", "hardened")["ratio_to_hardened"]["median"] == 1.0
    assert found(rows, "online", "all")["ratio_to_hardened"] is None
    assert found(rows_of(1, sealed), "total", "all")["ratio_to_hardened"] is None


def test_online_rows_from_the_store_are_those_of_the_batches_that_were_dealt_ahead():
    rows = rows_of(1, [made_up(1.0)], ahead=[made_up(5.0)])
    assert found(rows, "ahead", "all")["seconds_per_prediction"] == pytest.approx(20.0)
    assert found(rows, "online", "all")["seconds_per_prediction"] == pytest.approx(4.0)


def test_a_slow_link_adds_its_latency_a_round_and_its_width_a_byte():
    costs = {"seconds_per_prediction": 1.0, "megabytes_per_prediction": 25.0}
    assert on_a_slow_link(costs, rounds=10) == pytest.approx(1.0 + 10 * 0.020 + 25e6 * 8 / 100e6)
    total = found(rows_of(4, [made_up(1.0)]), "total", "all")
    assert total["modelled_seconds_on_a_slow_link"] == pytest.approx((7.0 + 9 * 0.020 + 3 * 4.75e6 * 8 / 100e6) / 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": ()},
        {"batch_sizes": (0,)},
        {"batch_sizes": ()},
        {"repeats": 0},
        {"threads": 0},
        {"styles": ("x",)},
        {"styles": ()},
        {"styles": ("sealed", "sealed")},
    ],
)
def test_what_cannot_be_measured_is_refused(wrong):
    with pytest.raises(PlanError, match="Expected"):
        SecurePrediction(**wrong)


def test_an_unknown_network_is_refused_before_a_process_starts(monkeypatch):
    monkeypatch.setattr(bench, "three_parties", lambda *_: pytest.fail("started"))
    with pytest.raises(BilateralError, match="vgg-77"):
        measure_secure_prediction(True, lambda *_: None, SecurePrediction(models=("vgg-77",)))


def test_clients_hear_and_say_the_messages_of_the_protocol():
    assert set(TO_QUERIER) <= set(MAY_HEAR[QUERYING])
    assert set(TO_ANSWERER) <= set(MAY_HEAR[ANSWERING])
    assert set(FROM_QUERIER) <= set(MAY_SAY[QUERYING])
    assert set(FROM_ANSWERER) <= set(MAY_SAY[ANSWERING])
    assert not {Queries, *TO_QUERIER} & (set(MAY_HEAR[ANSWERING]) - set(TO_ANSWERER))


def test_the_token_is_not_shown():
    assert "5ec4e7" not in repr(Introduction(QUERYING, 1, "5ec4e7"))


def test_three_processes_agree_with_plaintext_and_every_byte_is_counted_once(parties):
    parties.offer(SMALL)
    queries = images(5, SHAPE, 9)
    batch = parties.predict(queries)
    assert (batch.logits - predict(SMALL.compile(), queries)).abs().max() < 2**-12
    traffic = parties._server.traffic
    for phase, cost in batch.phases.items():
        sent = sum(party.bytes_sent for party in cost.parties.values())
        assert sent == sum(party.bytes_received for party in cost.parties.values())
        messages = 2 * sum(rounds for name, rounds in traffic.rounds.items() if name == phase)
        content = traffic.total_bytes(phase)
        if phase != "session":  # its traffic also has the end of the session, which is after the measurement
            assert content < sent < content + 600 * messages  # frames and headers
        assert cost.rounds > 0
        assert cost.seconds > 0
        for party in (*CLIENTS, SERVER):
            # One clock for all processes, and whatever a party does for a phase is between two of its messages.
            assert 0 <= cost.parties[party].busy_seconds <= cost.seconds + 1e-6
            assert cost.parties[party].cpu_seconds > 0
    assert min(batch.peak_memory_bytes.values()) > 50e6


class Clock:
    """Stands still, unless a test moves it."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    process_time = perf_counter


def test_what_happens_once_a_reply_has_left_is_not_the_partys_work(monkeypatch):
    """On a shared core the server may go on for long before the party reads its clock again."""
    clock, party_is_over = Clock(), threading.Event()
    monkeypatch.setattr(party_module, "time", clock)

    class Slow(Connection):
        def write_some(self):
            super().write_some()
            clock.now += 100.0

    class Worker:
        def handle(self, message):
            clock.now += 3.0
            return Acknowledged(message.session_id)

    with closing(socket.create_server((HOST, 0))) as listener:
        near = Connection(socket.create_connection(listener.getsockname()), QUERYING, MAY_SAY[QUERYING])
        far = Slow(listener.accept()[0], SERVER, MAY_HEAR[QUERYING])

    def live():
        party = PredictionParty(far, QUERYING)
        party._client = Worker()
        with closing(far), suppress(LostConnectionError):
            party.serve()
        party_is_over.set()

    threading.Thread(target=live, daemon=True).start()
    with closing(near):
        near.send(SessionEnd(b"s"))
        assert near.receive() == Acknowledged(b"s")
        near.send(CostRequest())
        costs = near.receive()
    assert party_is_over.wait(HANG)
    cpu, busy = costs.seconds[PHASES.index("session")].tolist()
    assert busy == 3.0
    assert cpu == 103.0  # sending costs time on a core


def test_what_was_dealt_ahead_is_answered_online_alone(keeping):
    keeping.offer(SMALL)
    queries = images(3, SHAPE, 9)
    batch = keeping.predict_ahead(queries)
    assert (batch.logits - predict(SMALL.compile(), queries)).abs().max() < 2**-12
    sent = {phase: sum(party.bytes_sent for party in cost.parties.values()) for phase, cost in batch.phases.items()}
    assert sent["session"] == sent["offline"] == 0 < sent["online"]


def test_a_later_batch_of_a_session_costs_what_the_row_says(parties):
    parties.offer(SMALL)
    first = parties.predict(images(2, SHAPE, 1))
    (_, offline, online) = (sum(c.bytes_sent for c in cost.parties.values()) for cost in first.phases.values())
    server, transport = parties._server, parties._transport
    parties._tell(QUERYING, Queries(images(2, SHAPE, 2)), Heard)
    sessions = server.open_sessions(QUERYING, [ANSWERING])
    server.predict(sessions, 2)
    parties._tell(QUERYING, Queries(images(2, SHAPE, 3)), Heard)
    transport.begin()
    server.predict(sessions, 2)
    second = sum(cost.bytes_sent for phase in transport.end().values() for cost in phase.parties.values())
    server.close(sessions)
    assert second == pytest.approx(offline + online, abs=64)  # an index may take a digit more


def test_the_command_measures_with_real_parties(parties, keeping, monkeypatch):
    monkeypatch.setattr(bench, "three_parties", lambda *words: nullcontext(keeping if words[2:] else parties))
    monkeypatch.setattr(bench, "INPUT_SHAPE", SHAPE)
    words = [
        "bench",
        "secure-prediction",
        "--model",
        "convnet",
        "--batch-size",
        "1",
        "--batch-size",
        "3",
        "--style",
        "sealed",
    ]
    outcome = CliRunner().invoke(app, [*words, "--repeats", "2", "--json", "--quiet"])
    assert outcome.exit_code == 0, outcome.output
    answer = json.loads(outcome.stdout)
    assert answer["bench"] == "secure-prediction"
    assert {row["style"] for row in answer["rows"]} == {"sealed"}
    assert {(row["model"], row["batch_size"]) for row in answer["rows"]} == {("convnet", 1), ("convnet", 3)}
    assert all(row["max_logit_error"] < 2**-12 and row["repeats"] == 2 for row in answer["rows"])
    one, three = (found([r for r in answer["rows"] if r["batch_size"] == b], "total", "all") for b in (1, 3))
    assert one["megabytes_per_prediction"] > three["megabytes_per_prediction"]  # the weights are sent once
    assert one["rounds"] == three["rounds"]


def test_a_wrong_answer_would_be_seen(parties):
    parties.offer(SMALL)
    other = Network("convnet", SHAPE, 10, SMALL.options, seed=4).compile()
    queries = images(1, SHAPE, 9)
    assert (parties.predict(queries).logits - predict(other, queries)).abs().max() > 2**-6


@pytest.mark.parametrize(
    "words",
    [
        ["recovery", "--model", "vgg-7"],
        ["round-trip", "--batch-size", "1", "--batch-size", "2"],
        ["secure-prediction", "--style", "x"],
    ],
)
def test_options_that_do_not_belong_together_are_refused(words):
    outcome = CliRunner().invoke(app, ["bench", *words])
    assert isinstance(outcome.exception, PlanError)


def test_a_party_that_cannot_start_is_an_error_with_what_it_wrote(monkeypatch):
    monkeypatch.setattr(processes, "_PROGRAM", "import sys; sys.exit('no room for me here')")
    before = children()
    with pytest.raises(DeploymentError, match="no room for me here"), three_parties("hardened", 1):
        pytest.fail("started")
    assert children() == before


def test_an_interrupt_leaves_no_process_behind(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes.Gate, "admit", interrupted)
    before = children()
    with pytest.raises(KeyboardInterrupt), three_parties("hardened", 1):
        pytest.fail("started")
    assert children() == before


def test_a_party_that_fails_in_the_middle_is_an_error_with_what_it_wrote():
    before, threads = children(), torch.get_num_threads()
    with (
        pytest.raises(DeploymentError, match=r"(?s)The answering party ended.*no-such-network"),
        three_parties("hardened", 1) as started,
    ):
        started.offer(Network("no-such-network", SHAPE, 10, "{}", 1))
    assert children() == before
    assert torch.get_num_threads() == threads
