"""A server that prepares rounds: it may leave clients out, speak before the model is sent, and refuse uploads."""

import pytest

from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint
from bilateral.errors import OutOfRangeError, ProtocolError
from bilateral.learning.aggregation import Incident
from bilateral.learning.exchange import LocalExchange
from bilateral.learning.halves import Preparation, PreparingHalf
from bilateral.protocols.mask.messages import MaskOpening
from bilateral.protocols.messages import Question, RoundModel

PLAN = RunPlan().with_settings(
    {
        "protection": "fedavg",
        "aggregation.masks": "ring",
        "data.name": "breast-cancer",
        "model.name": "mlp-3",
        "model.options": {"width": 4},
        "federation.clients": 5,
        "training.loss": "mse",
    }
)


class Preparing:
    """FedSGD's half, with something to do before."""

    def __init__(self, inner, leave_out=(), unfinished=()):
        self._inner, self._leave_out, self._unfinished = inner, leave_out, unfinished
        self.opened, self.names = None, ()

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def prepare(self, opened, names, exchange):
        self.opened, self.names = opened, names
        assert callable(exchange)
        packets = {name: () for name in names if name not in self._leave_out}
        return Preparation(packets, tuple((name, f"{name} was left out.") for name in self._leave_out))

    def expect_finished(self, sender):
        if sender in self._unfinished:
            raise ProtocolError(f"{sender} is not done.")


class Recording:
    """An exchange that keeps who was sent which types."""

    def __init__(self, inner: LocalExchange):
        self.inner, self.sent = inner, []

    def __call__(self, round_index, packets, respond=None):
        self.sent += [(name, type(message)) for name, packet in packets.items() for message in packet]
        return self.inner(round_index, packets, respond)


def prepared(**settings):
    federation = load_federation(PLAN)
    blueprint = make_blueprint(PLAN, federation)
    training = blueprint.server()
    training.server = Preparing(training.server, **settings)
    exchange = Recording(blueprint.local_exchange(lambda *_: None))
    return training, exchange, federation.names


def test_it_is_told_what_clients_were_told():
    training, exchange, names = prepared()
    assert isinstance(training.server, PreparingHalf)
    assert training.advance(0, names, exchange) == tuple(names)
    opened = training.server.opened
    assert opened.round_index == 0
    assert opened.opening.participants == opened.roster.clients == tuple(names)
    assert training.server.names == tuple(names)


def test_whom_it_leaves_out_is_sent_no_model_and_is_an_incident():
    training, exchange, names = prepared(leave_out=("client-2",))
    assert training.advance(0, names, exchange) == tuple(name for name in names if name != "client-2")
    assert ("client-2", MaskOpening) in exchange.sent
    assert not any(name == "client-2" and issubclass(kind, RoundModel) for name, kind in exchange.sent)
    assert training.aggregation.incidents == [Incident(0, "client-2", "client-2 was left out.")]


def test_an_upload_that_it_does_not_expect_is_not_in_the_sum():
    training, exchange, names = prepared(unfinished=("client-4",))
    assert "client-4" not in training.advance(0, names, exchange)
    assert training.aggregation.incidents == [Incident(0, "client-4", "client-4 is not done.")]


def test_a_number_out_of_its_range_is_nobodys_incident_and_ends_the_round():
    training, _, _ = prepared()

    def beyond(sender, message):
        raise OutOfRangeError("beyond")

    training.server.answer = beyond
    with pytest.raises(OutOfRangeError):
        training._answer(0, "client-1", Question())
    assert training.aggregation.incidents == []
