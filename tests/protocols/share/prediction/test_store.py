"""What is dealt ahead and kept on disk: used once, by the session that it was dealt for, or refused by name."""

from __future__ import annotations

import multiprocessing
import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.harness import QUERIER, Group, fill, key_rings, queries_like
from torch import nn

from bilateral.errors import MalformedMessageError, ProtocolError
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.gates.styles import HARDENED, SEALED
from bilateral.protocols.share.prediction import parties
from bilateral.protocols.share.prediction.messages import (
    BatchRequest,
    Carries,
    QueryRequest,
    ServerTurn,
    SessionNotice,
    SessionRequest,
)
from bilateral.protocols.share.prediction.parties import PredictionClient, PredictionServer
from bilateral.protocols.share.prediction.store import CorrelationStore
from bilateral.protocols.share.prediction.stored import StoredDealt, StoredHelping, StoredPart, StoredQuerying
from bilateral.randomness import SeededRandomness

SHAPE = (2, 6, 6)
ANSWERERS = ["anna", "bela"]
KEY = bytes(range(32))
TOLERANCE = 2**-12
PARTIES = ("server", QUERIER, *ANSWERERS)


def network(seed=0):
    layers = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    return compile_model(fill(nn.Sequential(*layers), seed), queries_like(SHAPE, count=8))


def store_of(folder, owner, key=KEY):
    return CorrelationStore(folder / owner, key, owner)


class Keeping(Group):
    """Parties that keep what is dealt ahead. A new object is all of them after a restart, with keys of another run."""

    def __init__(self, folder, term=0, style=SEALED):
        self.folder, self.term = folder, term
        super().__init__(seed=term, style=style)

    def __post_init__(self):
        super().__post_init__()
        self.rings = key_rings(self.names, 1000 + self.term)
        self.clients = {
            name: PredictionClient(self.rings[name], style=self.style, store=store_of(self.folder, name))
            for name in self.names
        }
        self.server = PredictionServer(
            self.rings["server"],
            self,
            style=self.style,
            randomness=SeededRandomness(self.term, "server"),
            store=store_of(self.folder, "server"),
        )

    def offer_all(self, models):
        for name, model in zip(ANSWERERS, models, strict=True):
            self.clients[name].offer(model)

    def deal(self, models, count):
        self.offer_all(models)
        sessions = self.server.open_sessions(QUERIER, ANSWERERS)
        self.clients[QUERIER].expect(count)
        self.server.deal_ahead(sessions, count)
        return sessions

    def answer(self, queries):
        self.clients[QUERIER].ask(queries)
        self.server.answer_ahead(self.server.stored_sessions(QUERIER, ANSWERERS), len(queries))
        return self.clients[QUERIER].take_answers()


@pytest.fixture
def models():
    return network(0), network(1)


def expected(models, queries):
    return sum(predict(model, queries) for model in models)


def test_what_was_dealt_before_a_restart_answers_queries_after_it(tmp_path, models):
    Keeping(tmp_path).deal(models, 5)
    again, queries = Keeping(tmp_path, term=1), queries_like(SHAPE, count=5)
    again.offer_all(models)
    assert (again.answer(queries) - expected(models, queries)).abs().max() < TOLERANCE


def test_online_nothing_is_dealt(tmp_path, models):
    group = Keeping(tmp_path)
    group.deal(models, 5)
    group.log.clear()
    group.answer(queries_like(SHAPE, count=5))
    spoken = {type(exchange.request) for exchange in group.log}
    assert not spoken & {BatchRequest, Carries, SessionRequest, SessionNotice}


def test_fewer_queries_than_were_dealt_for_are_answered_and_use_the_batch_up(tmp_path, models):
    group, queries = Keeping(tmp_path), queries_like(SHAPE, count=2)
    group.deal(models, 5)
    assert (group.answer(queries) - expected(models, queries)).abs().max() < TOLERANCE
    with pytest.raises(ProtocolError, match="nothing more that was dealt"):
        group.answer(queries)


def deal_in_batches(group, models, sizes):
    """One session with each answering party, and a batch of each size for both."""
    group.offer_all(models)
    sessions = group.server.open_sessions(QUERIER, ANSWERERS)
    group.clients[QUERIER].expect(sum(sizes))
    for size in sizes:
        group.server.deal_ahead(sessions, size)


def online_rounds(group, queries):
    before = group.server.traffic.rounds["online"]
    answer = group.answer(queries)
    return answer, group.server.traffic.rounds["online"] - before


def test_batches_from_the_store_are_answered_side_by_side_and_share_their_rounds(tmp_path, models):
    queries, (alone, together) = queries_like(SHAPE, count=6), (Keeping(tmp_path / name) for name in ("one", "many"))
    deal_in_batches(alone, models, [6])
    deal_in_batches(together, models, [1, 3, 2])
    _, expected_rounds = online_rounds(alone, queries)
    found, rounds = online_rounds(together, queries)
    assert (found - expected(models, queries)).abs().max() < TOLERANCE
    assert rounds == expected_rounds


def test_no_more_of_the_store_is_computed_at_once_than_fits_in_memory(tmp_path, models, monkeypatch):
    queries, group, done = queries_like(SHAPE, count=6), Keeping(tmp_path), []
    deal_in_batches(group, models, [1, 3, 2])
    monkeypatch.setattr(parties, "_queries_at_once", lambda sessions: 2)
    group.server._on_answered = done.append
    assert (group.answer(queries) - expected(models, queries)).abs().max() < TOLERANCE
    assert done == [4, 2]


def test_where_the_store_ends_the_queries_before_are_answered_and_the_rest_are_counted(tmp_path, models):
    group, done = Keeping(tmp_path), []
    deal_in_batches(group, models, [1, 3])
    group.server._on_answered = done.append
    with pytest.raises(ProtocolError, match="and 2 queries are left"):
        group.answer(queries_like(SHAPE, count=6))
    assert done == [4]


def test_a_batch_is_used_once_also_by_another_process(tmp_path, models):
    Keeping(tmp_path).deal(models, 5)
    first, second = Keeping(tmp_path, term=1), Keeping(tmp_path, term=2)
    for group in (first, second):
        group.offer_all(models)
    first.answer(queries_like(SHAPE, count=5))
    with pytest.raises(ProtocolError, match="nothing more that was dealt"):
        second.answer(queries_like(SHAPE, count=5, seed=1))


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_whose_folder_was_put_back_cannot_use_a_batch_again_for_the_others_refuse(tmp_path, models, party):
    group = Keeping(tmp_path)
    group.deal(models, 5)
    shutil.copytree(tmp_path / party, tmp_path / "before")
    group.answer(queries_like(SHAPE, count=5))
    shutil.rmtree(tmp_path / party)
    shutil.move(tmp_path / "before", tmp_path / party)
    again = Keeping(tmp_path, term=1)
    again.offer_all(models)
    with pytest.raises(ProtocolError):
        again.answer(queries_like(SHAPE, count=5, seed=1))


CRASHES = (QueryRequest, ServerTurn)


@pytest.mark.parametrize("kind", CRASHES)
def test_a_crash_in_the_middle_loses_the_batch_and_never_uses_it_again(tmp_path, models, kind):
    """Everybody dies when the first such message arrives. What was sent under the batch's masks is sent once."""

    class PowerCutError(Exception):
        pass

    def cut(exchange):
        if type(exchange.request) is kind:
            raise PowerCutError
        return exchange.reply

    group = Keeping(tmp_path)
    group.deal(models, 5)
    group.tamper = cut
    with pytest.raises(PowerCutError):
        group.answer(queries_like(SHAPE, count=5))
    sent = [e for e in group.log if type(e.request) is QueryRequest]
    again = Keeping(tmp_path, term=1)
    again.offer_all(models)
    with pytest.raises(ProtocolError, match="nothing more that was dealt"):
        again.answer(queries_like(SHAPE, count=5, seed=1))
    assert len(sent) >= 1
    assert not any(type(e.request) is QueryRequest for e in again.log)


def test_after_a_lost_batch_the_next_one_serves(tmp_path, models):
    group, queries = Keeping(tmp_path), queries_like(SHAPE, count=3)
    sessions = group.deal(models, 3)
    for session in sessions:
        session.take(session.waiting[0])  # lost
    again = Keeping(tmp_path, term=1)
    again.offer_all(models)
    again.clients[QUERIER].expect(9)
    again.server.deal_ahead(again.server.stored_sessions(QUERIER, ANSWERERS), 3)
    assert (again.answer(queries) - expected(models, queries)).abs().max() < TOLERANCE


def test_batches_that_were_begun_without_the_store_are_not_begun_again_after_a_restart(tmp_path, models):
    group, queries = Keeping(tmp_path), queries_like(SHAPE, count=3)
    group.offer_all(models)
    sessions = group.server.open_sessions(QUERIER, ANSWERERS)
    group.predict(queries, sessions=sessions)
    again = Keeping(tmp_path, term=1)
    again.offer_all(models)
    kept = again.server.stored_sessions(QUERIER, ANSWERERS)
    found = again.predict(queries, sessions=kept)
    assert (found - expected(models, queries)).abs().max() < TOLERANCE
    indices = [e.request.batch_index for g in (group, again) for e in g.log if type(e.request) is BatchRequest]
    assert sorted(indices) == [0, 0, 1, 1]


def test_a_closed_session_is_not_opened_again_under_its_name(tmp_path, models):
    group = Keeping(tmp_path)
    sessions = group.deal(models, 5)
    group.server.close(sessions)
    again = Keeping(tmp_path, term=1)
    again.offer_all(models)
    with pytest.raises(ProtocolError, match="no session"):
        again.server.stored_sessions(QUERIER, ANSWERERS)
    session_id = sessions[0].session_id
    with pytest.raises(ProtocolError, match="not a new one"):
        again.clients["anna"].handle(SessionRequest(session_id, QUERIER))
    with pytest.raises(ProtocolError, match="not a new one"):
        again.clients[QUERIER].handle(SessionNotice(session_id, "anna", models[0].circuit.to_json()))


def test_another_network_ends_the_sessions_that_were_about_the_old_one(tmp_path, models):
    Keeping(tmp_path).deal(models, 5)
    again = Keeping(tmp_path, term=1)
    again.offer_all((models[1], models[1]))  # anna has another network now
    with pytest.raises(ProtocolError, match="not open"):
        again.answer(queries_like(SHAPE, count=5))


def test_another_style_does_not_take_what_was_dealt_for_sealed_comparisons(tmp_path, models):
    Keeping(tmp_path).deal(models, 5)
    again = Keeping(tmp_path, term=1, style=HARDENED)
    again.offer_all(models)
    with pytest.raises(ProtocolError, match="style sealed, not hardened"):
        again.answer(queries_like(SHAPE, count=5))


def batch_files(folder, party):
    return sorted((folder / party).rglob("*.batch"))


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("change", ["truncated", "flipped", "emptied"])
def test_a_batch_that_was_changed_on_disk_is_refused_by_name_and_used_up(tmp_path, models, party, change):
    Keeping(tmp_path).deal(models, 5)
    for path in batch_files(tmp_path, party):
        data = path.read_bytes()
        path.write_bytes({"truncated": data[:-7], "flipped": data[:-1] + bytes([data[-1] ^ 1]), "emptied": b""}[change])
    again = Keeping(tmp_path, term=1) if party != QUERIER else None
    with pytest.raises(ProtocolError, match=f"store of {party} is not what was put"):
        again = again or Keeping(tmp_path, term=1)  # the querying party looks at what it has dealt when it starts
        again.offer_all(models)
        again.answer(queries_like(SHAPE, count=5))


@pytest.mark.parametrize("party", ["server", *ANSWERERS])
def test_batches_of_two_sessions_cannot_change_places(tmp_path, models, party):
    group = Keeping(tmp_path)
    group.deal(models, 5)
    group.deal(models, 5)
    paths = batch_files(tmp_path, party)[:2]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    again = Keeping(tmp_path, term=1)
    again.offer_all(models)
    with pytest.raises(ProtocolError, match="is not what was put"):
        again.answer(queries_like(SHAPE, count=5))


def session_and_terms(seed=0):
    return bytes([seed] * 16), bytes([seed + 1] * 32)


def small_store(folder, key=KEY, owner="anna"):
    store = CorrelationStore(folder, key, owner)
    session_id, terms = session_and_terms()
    if not store.is_known(session_id):
        store.keep_session(session_id, StoredQuerying("q", "a", "{}", "sealed", (bytes(32), bytes(32))))
    return store, session_id, terms


def test_reordered_batches_of_one_session_are_refused(tmp_path):
    store, session_id, terms = small_store(tmp_path)
    for index in (0, 1):
        store.put(session_id, index, terms, StoredDealt(index + 1))
    first, second = sorted(tmp_path.rglob("*.batch"))
    first.rename(tmp_path / "held")
    second.rename(first)
    (tmp_path / "held").rename(second)
    for index in (0, 1):
        with pytest.raises(ProtocolError, match="is not what was put"):
            store.take(session_id, index, terms, StoredDealt)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"key": bytes(32)}, "another key"),
        ({"owner": "bela"}, "another party"),
        ({"terms": bytes(32)}, "another circuit or style"),
        ({"kind": StoredPart}, "another part"),
    ],
)
def test_a_batch_is_read_only_with_the_key_owner_terms_and_part_that_it_was_put_with(tmp_path, other, what):
    store, session_id, terms = small_store(tmp_path)
    store.put(session_id, 0, terms, StoredDealt(3))
    reader, _, _ = small_store(tmp_path, other.get("key", KEY), other.get("owner", "anna"))
    with pytest.raises(ProtocolError, match="is not what was put"):
        reader.take(session_id, 0, other.get("terms", terms), other.get("kind", StoredDealt))
    with pytest.raises(ProtocolError, match="used"):  # and used up by the attempt
        store.take(session_id, 0, terms, StoredDealt)


def test_an_index_is_put_once_and_never_again_after_it_was_used(tmp_path):
    store, session_id, terms = small_store(tmp_path)
    store.put(session_id, 3, terms, StoredDealt(3))
    store.take(session_id, 3, terms, StoredDealt)
    for index in (3, 2, 0):
        with pytest.raises(ProtocolError, match="has had batch"):
            store.put(session_id, index, terms, StoredDealt(3))
    store.put(session_id, 4, terms, StoredDealt(3))
    assert store.waiting(session_id) == [4]


def test_a_mark_that_was_made_before_a_crash_counts_though_the_batch_is_still_there(tmp_path):
    store, session_id, terms = small_store(tmp_path)
    store.put(session_id, 0, terms, StoredDealt(3))
    (next(tmp_path.rglob("*.batch")).parent / "0.used").touch()
    assert store.waiting(session_id) == []
    with pytest.raises(ProtocolError, match="used before"):
        store.take(session_id, 0, terms, StoredDealt)


def test_a_draft_that_a_crash_left_behind_is_no_batch(tmp_path):
    store, session_id, terms = small_store(tmp_path)
    (tmp_path / session_id.hex() / "0.batch.draft").write_bytes(b"half of it")
    assert store.waiting(session_id) == []
    store.put(session_id, 0, terms, StoredDealt(3))
    assert store.take(session_id, 0, terms, StoredDealt).batch_size == 3


def _take(folder, gate, results):
    store, session_id, terms = small_store(folder)
    gate.wait()
    try:
        results.put(store.take(session_id, 0, terms, StoredDealt).batch_size)
    except ProtocolError:
        results.put(None)


def test_of_many_processes_that_take_a_batch_at_the_same_time_one_gets_it(tmp_path):
    store, session_id, terms = small_store(tmp_path)
    store.put(session_id, 0, terms, StoredDealt(3))
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(4), context.Queue()
    takers = [context.Process(target=_take, args=(tmp_path, gate, results)) for _ in range(4)]
    for taker in takers:
        taker.start()
    found = [results.get() for _ in takers]
    for taker in takers:
        taker.join()
    assert sorted(found, key=str) == [3, None, None, None]


def test_nothing_in_the_folder_can_be_read_without_the_key(tmp_path, models):
    """Seeds, weights under masks, shares: no run of 16 bytes of them is there."""
    group = Keeping(tmp_path)
    (session, _) = group.deal(models, 5)
    stored = group.server._store.session(session.session_id, StoredHelping)
    on_disk = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    secrets = [*stored.seeds, *(weight.numpy().tobytes()[:16] for weight in stored.weights), b"StoredHelping", b"conv"]
    assert not any(secret in on_disk for secret in secrets)


def test_files_are_for_their_owner_alone(tmp_path, models):
    Keeping(tmp_path).deal(models, 2)
    for path in tmp_path.glob("*/*/*"):
        assert path.stat().st_mode & 0o077 == 0, path
    for path in tmp_path.glob("*/*"):
        assert path.stat().st_mode & 0o077 == 0, path


@settings(max_examples=30, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_changed_byte_of_a_file_gets_through(tmp_path_factory, position, bit):
    folder = tmp_path_factory.mktemp("store")
    store, session_id, terms = small_store(folder)
    store.put(session_id, 0, terms, StoredDealt(3))
    path = next(folder.rglob("*.batch"))
    data = bytearray(path.read_bytes())
    data[int(position * len(data))] ^= 1 << bit
    path.write_bytes(bytes(data))
    with pytest.raises(ProtocolError, match="is not what was put"):
        store.take(session_id, 0, terms, StoredDealt)


def test_a_stored_part_of_other_sizes_than_the_circuits_is_refused(tmp_path, models):
    """A file that the owner's own key made, but of another circuit: kept under the right terms by a wrong program."""
    group = Keeping(tmp_path)
    (session, _) = group.deal(models, 5)
    stored = group.server._store.take(session.session_id, 0, session._kept.terms, StoredPart)
    wrong = {
        "carries": stored.carries[:-1],
        "shares": (stored.shares[0][:-1], *stored.shares[1:]),
        "betas": (stored.betas[0][:-1], *stored.betas[1:]),
        "epsilons": (torch.zeros(0, dtype=torch.int64), *stored.epsilons[1:]),
        "comparisons": stored.comparisons[1:],
        "batch_size": 4,
    }
    for index, (name, value) in enumerate(wrong.items(), start=1):
        session._kept.put(index, replace(stored, **{name: value}))
        with pytest.raises(MalformedMessageError, match="the store"):
            session.take(index)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_a_key_has_32_bytes(tmp_path, key):
    with pytest.raises(ProtocolError, match="32 bytes"):
        CorrelationStore(tmp_path, key, "anna")


def test_a_server_without_a_store_says_so(models):
    group = Group()
    sessions = group.open(*models)
    with pytest.raises(ProtocolError, match="keeps nothing"):
        group.server.deal_ahead(sessions, 3)
    with pytest.raises(ProtocolError, match="keeps nothing"):
        group.server.stored_sessions(QUERIER, ANSWERERS)
