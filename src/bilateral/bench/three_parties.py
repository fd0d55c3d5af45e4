"""Three processes that predict together: this one is the server, the two clients are started and ended here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from torch import Tensor

from bilateral.bench.metering import MeteredTransport, PhaseCost, add_books
from bilateral.bench.party import Heard, Setup, peak_memory_bytes
from bilateral.bench.prediction_party import (
    ANSWERING,
    MAY_SAY,
    QUERYING,
    Answer,
    AnswerRequest,
    Network,
    PredictionSetup,
    Queries,
    QueriesToCome,
    fresh_store,
)
from bilateral.bench.processes import agree_on_keys, ask_costs, started, tell
from bilateral.engine.remote.loopback import Switchboard
from bilateral.protocols.messages import Message
from bilateral.protocols.share.gates.styles import STYLES
from bilateral.protocols.share.prediction.helping import HelpingSession
from bilateral.protocols.share.prediction.messages import PHASES, phase_of
from bilateral.protocols.share.prediction.parties import PredictionServer
from bilateral.protocols.transport import SERVER, Traffic

CLIENTS: Final = (QUERYING, ANSWERING)
PARTIES: Final = (*CLIENTS, SERVER)
_MODULE: Final = "bilateral.bench.prediction_party"
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True)
class BatchCost:
    """One batch in a fresh session. `peak_memory_bytes`: of every party's process, so far."""

    logits: Tensor
    phases: Mapping[str, PhaseCost]
    peak_memory_bytes: Mapping[str, int]


class ThreeParties:
    """The server with two clients that have agreed on keys. Made by `three_parties`."""

    def __init__(self, switchboard: Switchboard, style: str, threads: int, folder: str = "") -> None:
        """`folder`: for what is dealt ahead (`predict_ahead`)."""
        self._switchboard = switchboard
        self._transport = MeteredTransport(switchboard, PHASES, phase_of)
        folders = {party: str(Path(folder) / party) if folder else "" for party in PARTIES}

        def setup_of(party: str, setup: Setup) -> Setup:
            return PredictionSetup(**vars(setup), style=style, store=folders[party])

        self._server = PredictionServer(
            agree_on_keys(switchboard, threads, setup_of),
            self._transport,
            style=STYLES[style],
            store=fresh_store(folders[SERVER], SERVER),
        )

    def offer(self, network: Network) -> None:
        """The answering party makes this network and answers with it from now on."""
        self._tell(ANSWERING, network, Heard)

    def predict(self, queries: Tensor) -> BatchCost:
        """One batch in a fresh session, from its opening to the logits at the querying party."""
        self._tell(QUERYING, Queries(queries), Heard)
        ask_costs(self._switchboard)  # of what was before, such as the end of the last session: not counted
        self._server.traffic = Traffic()
        self._transport.begin()
        sessions = self._server.open_sessions(QUERYING, [ANSWERING])
        self._server.predict(sessions, len(queries))
        return self._batch_cost(sessions)

    def predict_ahead(self, queries: Tensor) -> BatchCost:
        """The same, but everything that needs no query was dealt before, and lies in the stores: what is left then."""
        self._tell(QUERYING, QueriesToCome(len(queries)), Heard)
        sessions = self._server.open_sessions(QUERYING, [ANSWERING])
        self._server.deal_ahead(sessions, len(queries))
        self._tell(QUERYING, Queries(queries), Heard)
        ask_costs(self._switchboard)
        self._server.traffic = Traffic()
        self._transport.begin()
        self._server.answer_ahead(sessions, len(queries))
        return self._batch_cost(sessions)

    def _batch_cost(self, sessions: Sequence[HelpingSession]) -> BatchCost:
        phases = self._transport.end()
        costs = ask_costs(self._switchboard)
        add_books(phases, costs)
        for phase, cost in phases.items():
            cost.rounds = self._server.traffic.rounds[phase]
        logits = self._tell(QUERYING, AnswerRequest(), Answer).logits
        self._server.close(sessions)
        peaks = {party: found.peak_memory_bytes for party, found in costs.items()}
        return BatchCost(logits, phases, {**peaks, SERVER: peak_memory_bytes()})

    def _tell(self, party: str, order: Message, kind: type[_M]) -> _M:
        return tell(self._switchboard, party, order, kind)


@contextmanager
def three_parties(style: str, threads: int, folder: str = "") -> Iterator[ThreeParties]:
    """Start the clients, and end them whatever happens. `folder`: where they keep what is dealt ahead."""
    with started(_MODULE, MAY_SAY, threads) as switchboard:
        yield ThreeParties(switchboard, style, threads, folder)
