"""Asking, message by message: right answers, every question counted before anything else, and nothing twice."""

from dataclasses import replace

import pytest
import torch
from tests.serving.harness import NET, Parties, inputs, is_refused, served
from torch import nn

from bilateral.errors import (
    AuthenticationError,
    CheckpointError,
    MalformedMessageError,
    NumericalRangeError,
    ProtocolError,
    QuestionLimitError,
    SealedShareError,
)
from bilateral.protocols.mask.messages import KeyAnnouncement, Roster
from bilateral.protocols.membership import KeyRequest
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.serving.messages import (
    NOT_DONE,
    OUT_OF_RANGE,
    SPENT,
    AnswerBegin,
    AnswersDealt,
    AnswerTurn,
    AnswerTurnReply,
    Ask,
    AskingRequest,
    DealAnswers,
    DealingOpened,
    Joined,
    OpenDealing,
    Refused,
    Service,
)


def changing(kind, **changes):
    """Messages of this kind are changed on their way."""

    def between(_sender, message):
        if not isinstance(message, kind):
            return message
        return replace(message, **{name: change(getattr(message, name)) for name, change in changes.items()})

    return between


def test_a_client_learns_the_answers_of_the_model():
    session = Parties().opened()
    wanted = NET(inputs(8, 1)).detach()
    assert float((session.ask(inputs(8, 1), "logits") - wanted).abs().max()) < 2.0**-14
    assert session.ask(inputs(8, 1), "class").tolist() == wanted.argmax(1).tolist()
    assert session.used == 16


def test_the_weights_are_sent_once_a_session_and_every_question_has_a_box_of_its_own():
    parties = Parties()
    session = parties.opened()
    for _ in range(2):
        session.ask(inputs(4), "class")
    assert sum(isinstance(message, Service) for _, message in parties.said) == 1
    boxes = [message.box for _, message in parties.said if isinstance(message, AnswersDealt)]
    assert len(set(boxes)) == 2


def test_the_dealer_is_sent_nothing_that_depends_on_inputs_or_weights():
    """Its whole view: the same for other inputs and another model of the same circuit."""

    def view(model, asked):
        parties = Parties(model=model)
        parties.opened().ask(asked, "logits")
        kinds = KeyRequest, Roster, OpenDealing, DealAnswers
        return [message for sender, message in parties.said if sender == "server" and isinstance(message, kinds)]

    other = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    assert view(served(), inputs(4)) == view(served(other), inputs(4, 5, 3.0))


def test_questions_are_counted_for_each_client_up_to_its_limit():
    parties = Parties(limit=10)
    anna, carol = parties.opened("anna"), parties.opened("carol")
    anna.ask(inputs(8), "class")
    with pytest.raises(QuestionLimitError, match="anna has asked 8 of 10 questions, so 3 more are too many") as caught:
        anna.ask(inputs(3), "class")
    assert "--questions" in str(caught.value)
    anna.ask(inputs(2), "class")
    carol.ask(inputs(8), "class")
    assert [counter.used for counter in parties.counters.values()] == [10, 8]


def test_a_new_session_or_a_new_server_does_not_reset_the_count(tmp_path):
    path = tmp_path / "anna.json"
    FileCounter.create(path, "questions")
    for _ in range(2):
        Parties(limit=10, counters={"anna": FileCounter(path, "questions")}).opened().ask(inputs(5), "class")
    session = Parties(limit=10, counters={"anna": FileCounter(path, "questions")}).opened()
    assert session.used == 10
    with pytest.raises(QuestionLimitError):
        session.ask(inputs(1), "class")


def test_a_question_is_on_disk_before_anything_is_dealt_or_told_for_it(tmp_path):
    path, seen = tmp_path / "anna.json", []
    counter = FileCounter.create(path, "questions")

    def between(_sender, message):
        if isinstance(message, DealAnswers | AnswerBegin):
            seen.append(FileCounter(path, "questions").used)
        return message

    Parties(counters={"anna": counter}, between=between).opened().ask(inputs(3), "class")
    assert seen == [3, 3]


@pytest.mark.parametrize("kind", [DealAnswers, AnswersDealt, AnswerBegin, AnswerTurn, AnswerTurnReply])
def test_a_crash_never_gives_a_question_for_free(kind):
    def between(_sender, message):
        if isinstance(message, kind):
            raise KeyboardInterrupt
        return message

    parties = Parties(between=between)
    session = parties.opened()
    with pytest.raises(KeyboardInterrupt):
        session.ask(inputs(3), "class")
    assert parties.counters["anna"].used == 3


@pytest.mark.parametrize("lost", ["missing", "empty", "negative", "of rounds"])
def test_a_count_that_is_not_there_is_spent(tmp_path, lost):
    path = tmp_path / "anna.json"
    counter = FileCounter.create(path, "questions")
    session = Parties(counters={"anna": counter}).opened()
    texts = {"empty": "", "negative": '{"questions": -1}', "of rounds": '{"rounds": 0}'}
    path.unlink() if lost == "missing" else path.write_text(texts[lost])
    with pytest.raises(ProtocolError, match="does not say how many questions were used"):
        session.ask(inputs(1), "class")
    with pytest.raises(ProtocolError, match="does not say how many questions were used"):
        Parties(counters={"anna": counter}).opened()
    with pytest.raises(CheckpointError):
        FileCounter(path, "questions")


def test_an_input_out_of_range_is_refused_before_it_is_counted():
    parties = Parties()
    with pytest.raises(NumericalRangeError, match="takes inputs up to"):
        parties.opened().ask(inputs(2) + 2000, "class")
    assert parties.counters["anna"].used == 0


def test_a_number_out_of_range_has_no_answer_is_said_on_both_sides_and_is_counted():
    parties = Parties(model=served(nn.Sequential(*[nn.Linear(4, 4).double() for _ in range(2)]).double()))
    with torch.no_grad():
        for layer in parties.server.model.first.layers:
            layer.weight.fill_(1 << 21)
    parties.server.model.first = replace(
        parties.server.model.first,
        maps=[lambda x, w=layer.weight: x @ w.T for layer in parties.server.model.first.layers],
    )
    parties.server.model.model_for = lambda _terms: replace(parties.server.model.first, limits={"layer 0": 2047 << 20})
    session = parties.opened()
    with pytest.raises(NumericalRangeError, match="left their range"):
        session.ask(torch.full((1, 4), 1000.0, dtype=torch.float64), "logits")
    assert any("left their range" in note for note in parties.notes)
    assert isinstance(parties.said[-1][1], Refused) and parties.said[-1][1].why == OUT_OF_RANGE
    assert parties.counters["anna"].used == 1
    assert session.ask(inputs(1, scale=0.1), "logits").shape == (1, 4), "the session goes on"


def test_a_service_of_classes_reveals_no_logits():
    parties = Parties(reveal="class")
    session = parties.opened()
    with pytest.raises(ProtocolError, match="reveals classes only"):
        session.ask(inputs(2), "logits")
    assert parties.counters["anna"].used == 0
    assert session.used == 0 and parties.said[-1][1].why == NOT_DONE


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Ask(0, 0, "class"), "1 to 8 questions"),
        (Ask(0, -3, "class"), "1 to 8 questions"),
        (Ask(0, 9, "class"), "1 to 8 questions"),
        (Ask(1, 2, "class"), "expected asking 0"),
        (Ask(-1, 2, "class"), "expected asking 0"),
        (Ask(0, 2, "weights"), "cannot be answered"),
        (AnswerTurn(0, 0, ()), "out of turn"),
        (AskingRequest(), "out of turn"),
        (Joined(), "out of turn"),
        (KeyAnnouncement(b"", "anna", b"", b"", b""), "out of turn"),
        (Service("", "", 1, 1, 1, "", "", "", (), ()), "out of turn"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_not_counted(message, words):
    parties = Parties()
    own, client = parties.raw()
    assert is_refused(own.handle(message), words, NOT_DONE)
    assert parties.counters["anna"].used == 0
    assert client.ask(inputs(2), "class").shape == (2,), "and the session goes on"


def test_nothing_is_asked_before_the_keys_are_agreed():
    parties = Parties()
    own = parties.server.session("anna")
    assert is_refused(own.handle(Ask(0, 1, "class")), "out of turn")
    assert is_refused(own.handle(Joined()), "out of turn")
    assert parties.counters["anna"].used == 0


def test_an_asking_that_is_replayed_is_refused():
    own, _ = Parties().raw()
    assert isinstance(own.handle(Ask(0, 1, "class")), AnswerBegin)
    assert is_refused(own.handle(Ask(0, 1, "class")), "expected asking 1")


@pytest.mark.parametrize("turn", [AnswerTurn(0, 1, ()), AnswerTurn(1, 0, ()), AnswerTurn(0, -1, ())])
def test_a_turn_of_another_time_ends_the_asking(turn):
    own, _ = Parties().raw()
    own.handle(Ask(0, 1, "class"))
    assert is_refused(own.handle(turn), "expected turn 0 of asking 0")
    assert is_refused(own.handle(AnswerTurn(0, 0, ())), "out of turn")


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (torch.zeros(1, dtype=torch.int64),),
        (torch.zeros(1, 4, dtype=torch.float64),),
        (torch.zeros(1, 4, dtype=torch.int64),) * 40,
    ],
)
def test_a_malformed_turn_ends_the_asking(parts):
    own, _ = Parties().raw()
    own.handle(Ask(0, 1, "class"))
    assert is_refused(own.handle(AnswerTurn(0, 0, parts)), "Malformed message from anna")


def test_a_dealer_deals_once_for_an_asking():
    parties = Parties()
    own, client = parties.raw()
    client.ask(inputs(1), "class")
    assert is_refused(parties.dealer.handle(DealAnswers(own._run_id, 0, 1, "class")), "was dealt for before")
    assert is_refused(parties.dealer.handle(OpenDealing(own._run_id, "{}")), "has masks already")
    assert is_refused(parties.dealer.handle(KeyRequest(own._run_id)), "had its keys before")
    assert is_refused(parties.dealer.handle(DealAnswers(own._run_id, 1, 0, "class")), "cannot be answered")
    assert is_refused(parties.dealer.handle(DealAnswers(b"x" * 32, 1, 1, "class")), "not open")
    own.close()
    assert is_refused(parties.dealer.handle(DealAnswers(own._run_id, 1, 1, "class")), "not open")


def test_a_box_that_was_changed_or_is_of_another_asking_does_not_open():
    flipped = changing(AnswerBegin, box=lambda box: box[:-1] + bytes([box[-1] ^ 1]))
    with pytest.raises(SealedShareError, match="does not open"):
        Parties(between=flipped).opened().ask(inputs(1), "class")
    kept = []

    def replayed(_sender, message):
        if isinstance(message, AnswerBegin):
            kept.append(message.box)
            return replace(message, box=kept[0])
        return message

    session = Parties(between=replayed).opened()
    session.ask(inputs(1), "class")
    with pytest.raises(SealedShareError, match="does not open"):
        session.ask(inputs(1), "class")


@pytest.mark.parametrize(
    ("between", "words"),
    [
        (changing(Service, dealer=lambda _: "mallory"), "deals, not dealer"),
        (changing(Service, circuit=lambda _: "{}"), "is not one"),
        (changing(Service, weights=lambda weights: weights[:1]), "Malformed message from server"),
        (changing(Service, reveal=lambda _: "weights"), "impossible conditions"),
        (changing(Service, batch_size=lambda _: 0), "impossible conditions"),
        (changing(DealingOpened, seed=lambda _: b"short"), "seed of 5 bytes"),
    ],
)
def test_a_service_that_is_malformed_is_refused(between, words):
    with pytest.raises((MalformedMessageError, ProtocolError), match=words):
        Parties(between=between).opened()


@pytest.mark.parametrize(
    ("between", "words"),
    [
        (changing(AnswerBegin, serial=lambda serial: serial + 1), "of another asking"),
        (changing(AnswerBegin, seed=lambda _: b""), "has no seed"),
        (changing(AnswerTurnReply, number=lambda number: number + 1), "expected turn 0"),
        (changing(AnswerTurnReply, parts=lambda parts: parts[:-1]), "Malformed message from server"),
        (changing(AnswerTurnReply, parts=lambda parts: (*parts, parts[-1])), "Malformed message from"),
        (changing(AnswersDealt, seed=lambda _: b""), "seed of 0 bytes"),
    ],
)
def test_an_answer_that_is_malformed_is_refused(between, words):
    with pytest.raises(ProtocolError, match=words):
        Parties(between=between).opened().ask(inputs(2), "logits")


def test_nobody_asks_in_the_name_of_another():
    parties = Parties()
    with pytest.raises(ProtocolError, match="not the pinned one"):
        parties.session("anna", identity=parties.identities["carol"]).open()
    with pytest.raises(ProtocolError, match="is no client of this service"):
        parties.server.session("mallory")


def test_a_server_cannot_deal_itself():
    """Its own key in the dealer's place is refused by the pinned identity."""
    parties = Parties()
    forged = parties.identities["carol"].public_bytes

    def between(sender, message):
        if sender != "server" or not isinstance(message, Roster):
            return message
        rosters.append(message)
        if len(rosters) == 1:  # the dealer's own
            return message
        columns = zip(message.clients, message.identity_keys, strict=True)
        return replace(message, identity_keys=tuple(forged if name == "dealer" else key for name, key in columns))

    rosters, session = [], parties.session()
    parties.between = between
    with pytest.raises(AuthenticationError, match="not the pinned one"):
        session.open()


def test_a_dealer_that_is_gone_costs_the_questions_and_says_so():
    parties = Parties()
    session = parties.opened()
    parties.dealer.handle = lambda _message: Refused(NOT_DONE, "dealer, who deals, is not there.")
    with pytest.raises(ProtocolError, match="dealer, who deals, is not there"):
        session.ask(inputs(2), "class")
    assert parties.counters["anna"].used == 2
    assert SPENT != NOT_DONE
