"""P2's scheme end to end: exact without noise, the central variance with it, and refusals."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from tests.protocols.noise.published_federation import Federation, NamedSecrets, everyone_else, ring_of
from tests.reference.gradients import plain_gradient
from tests.reference.harness import relative_error

from bilateral.errors import NumericalRangeError, PlanError, ProtocolError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.messages import Upload, aggregate
from bilateral.protocols.noise.published import PublishedNoiseClient
from bilateral.protocols.noise.published_accounting import NoiseLevels
from bilateral.protocols.noise.published_stream import PairStream
from bilateral.protocols.perturb.messages import SoftmaxQuery

torch.set_num_threads(1)
SILENT = NoiseLevels(0.0, 0.0)


def mlp(dtype=torch.float64, **options):
    return build_model("mlp-5", input_shape=(8,), num_outputs=3, width=12, **options).to(dtype)


def mean_gradient(federation):
    """The mean of plain gradients in float64."""
    model, graph = copy.deepcopy(federation.model).double(), federation.graph
    wide = [(x.double(), t.double()) for x, t in federation.batches.values()]
    return sum(plain_gradient(model, graph, x, t, "mse") for x, t in wide) / len(wide)


ZOO = [
    ("mlp-5", {}, (12,), 1),
    ("mlp-5", {"bias": False}, (12,), 4),
    ("lenet", {}, (1, 8, 8), 1),
    ("resnet-8", {"width": 6}, (3, 8, 8), 1),
    ("resnet-8", {"width": 6, "batch_norm": False}, (3, 8, 8), 1),
    ("densenet", {"growth": 4, "layers": [2, 2]}, (3, 16, 16), 1),
]


@pytest.mark.parametrize(("name", "options", "shape", "partitions"), ZOO)
def test_without_noise_the_mean_gradient_is_recovered_to_1e_12_in_float64_and_1e_5_in_float32(
    name, options, shape, partitions
):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        model = build_model(name, input_shape=shape, num_outputs=4, **options).to(dtype)
        federation = Federation(model, shape, 2, SILENT, partitions=partitions)
        got, _ = federation.round(0)
        expected = mean_gradient(federation)
        assert float((got - expected).norm() / expected.norm()) < tolerance


def test_the_recovered_mean_has_the_central_variance_and_pairwise_noise_cancels():
    """Empirical variance of (recovered - true) over rounds: sigma_eta^2 / K, however large the pairwise noise is."""
    num_clients, num_rounds, sigma = 3, 80, 2.0
    federation = Federation(mlp(), (8,), num_clients, NoiseLevels(sigma, 50.0))
    errors = torch.stack([torch.sub(*federation.round(t)) for t in range(num_rounds)])
    variance = float(errors.square().mean())
    # Elements of a layer share factors, so rounds are the independent samples; their spread gives the tolerance.
    per_round = errors.square().mean(1)
    tolerance = 4 * float(per_round.std()) / math.sqrt(num_rounds)
    assert tolerance < 0.06 * sigma**2 / num_clients
    assert abs(variance - sigma**2 / num_clients) < tolerance
    assert abs(float(errors.mean())) < 0.02 * sigma


@pytest.mark.parametrize("graph", [everyone_else, ring_of])
def test_pairwise_noise_cancels_in_the_sum_to_rounding(graph):
    federation = Federation(mlp(), (8,), 5, NoiseLevels(0.0, 100.0), graph=graph)
    bare = federation.bare_uploads(federation.server.start_round(0))
    noisy = federation.add_noise(bare, 0)
    trained = federation.published.trained
    for name in federation.names:  # every upload by itself is far from the truth
        assert float((noisy[name].terms[0] - bare[name].terms[0])[trained].abs().median()) > 20
    got, expected = aggregate(noisy, 0).terms, aggregate(bare, 0).terms
    assert float((got - expected).abs().max()) < 1e-10
    assert relative_error(federation.recover(noisy, 0), federation.recover(bare, 0)) < 1e-9


@pytest.mark.parametrize("levels", [NoiseLevels(1.5, 0.0), NoiseLevels(0.0, 1.5)])
def test_a_clients_recovered_noise_is_normal_over_the_draw_of_the_factors(levels):
    """Theorems 5 and 6 for one upload, over many rounds: independent noise, and noise shared with one neighbour."""
    federation = Federation(mlp(), (8,), 2, levels)
    graph, published = federation.graph, federation.published
    # One element of each kind; their layers are not next to each other, so they share no factor.
    elements = [graph.layout(n).offset for n in ("hidden.0.weight", "hidden.2.weight", "hidden.3.bias", "head.bias")]
    blank = torch.zeros(3, published.graph.num_parameters, dtype=torch.float64)
    seen = []
    for number in range(150):
        federation.server.start_round(number)
        upload = Upload(number, 1, blank, torch.zeros(0))
        noise = federation.noises["client-0"].add_noise(upload, number, federation.names).terms[0]
        seen.append(published.to_original(federation.secrets.ratio * noise)[elements])
    assert stats.kstest(torch.cat(seen).numpy(), "norm", (0, 1.5)).pvalue > 1e-3


def test_noise_is_on_the_first_term_of_trained_parameters_only():
    model = mlp()
    model.get_parameter("hidden.2.weight").requires_grad_(False)
    federation = Federation(model, (8,), 2, NoiseLevels(1.0, 1.0))
    bare = federation.bare_uploads(federation.server.start_round(0))
    noisy = federation.add_noise(bare, 0)
    added = noisy["client-0"].terms - bare["client-0"].terms
    graph = federation.published.graph
    for p in graph.parameters:
        frozen = p.name.startswith("transitional") or p.name == "hidden.2.weight"
        assert bool((added[0, p.slice] == 0).all() if frozen else (added[0, p.slice] != 0).all()), p.name
    assert not added[1:].any()  # the published flaw


def test_uploads_have_weight_1_whatever_the_number_of_samples():
    federation = Federation(mlp(), (8,), 2, NoiseLevels(1.0, 1.0))
    upload = federation.bare_uploads(federation.server.start_round(0))["client-0"]
    heavy = replace(upload, weight=17)
    assert federation.noises["client-0"].add_noise(heavy, 0, federation.names).weight == 1


def test_noise_differs_from_round_to_round_and_between_attempts():
    federation = Federation(mlp(), (8,), 2, NoiseLevels(0.0, 1.0))
    client = federation.noises["client-0"]
    width = federation.published.graph.num_parameters

    def noise(round_index, attempt):
        blank = Upload(round_index, 1, torch.zeros(3, width, dtype=torch.float64), torch.zeros(0))
        return client.add_noise(blank, round_index, federation.names, attempt=attempt).terms[0]

    drawn = [noise(0, 0), noise(0, 1), noise(1, 0)]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    with pytest.raises(ProtocolError, match="client-0: round 1, attempt 0 already has its noise"):
        noise(1, 0)
    with pytest.raises(ProtocolError, match="already has its noise"):
        noise(0, 2)


def test_the_server_returns_the_original_order_and_zero_for_unused_parameters():
    class Spare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(5, 2)
            self.spare = torch.nn.Linear(3, 3)
            self.first = torch.nn.Linear(8, 5)

        def forward(self, x):
            return self.head(torch.relu(self.first(x)))

    federation = Federation(Spare().double(), (8,), 2, SILENT)
    got, _ = federation.round(0)
    expected = mean_gradient(federation)
    assert relative_error(got, expected) < 1e-12
    spare = ScaleGraph.of(federation.model, torch.zeros(1, 8)).layout("spare.weight")
    assert not got[spare.slice].any()


def test_a_missing_client_is_refused_by_the_server():
    federation = Federation(mlp(), (8,), 3, NoiseLevels(1.0, 1.0))
    uploads = federation.add_noise(federation.bare_uploads(federation.server.start_round(0)), 0)
    del uploads["client-1"]
    with pytest.raises(ProtocolError, match=r"weight 2, expected 3.*no dropout"):
        federation.recover(uploads, 0)


def test_a_question_inside_a_round_is_refused_by_name():
    federation = Federation(mlp(), (8,), 2, SILENT)
    with pytest.raises(ProtocolError, match="anna sent SoftmaxQuery"):
        federation.server.answer("anna", SoftmaxQuery(0, torch.zeros(1), torch.zeros(1, 3, 2)))


def test_the_servers_state_survives_a_checkpoint():
    federation, resumed = (Federation(mlp(), (8,), 2, SILENT) for _ in range(2))
    federation.server.start_round(3)
    with torch.no_grad():  # a different model: without the state the noise would have another size
        for model in (federation.model, resumed.model):
            model.get_parameter("head.weight").mul_(3.0)
    resumed.server.load_state_tensors(federation.server.state_tensors())
    assert torch.equal(resumed.server.start_round(4).parameters, federation.server.start_round(4).parameters)


def bad_uploads(width):
    good = Upload(0, 1, torch.zeros(3, width), torch.zeros(0))
    return {
        "is of round 5": replace(good, round_index=5),
        "expected terms of": replace(good, terms=torch.zeros(3, width - 1)),
        "train on the expanded": replace(good, terms=torch.zeros(width)),
    }


@pytest.mark.parametrize("text", list(bad_uploads(2)))
def test_a_malformed_upload_is_refused_in_the_clients_name(text):
    federation = Federation(mlp(), (8,), 2, NoiseLevels(1.0, 1.0))
    upload = bad_uploads(federation.published.graph.num_parameters)[text]
    with pytest.raises(ProtocolError, match=f"(?i)client-0: .*{text}"):
        federation.noises["client-0"].add_noise(upload, 0, federation.names)


@pytest.mark.parametrize(
    ("participants", "neighbours", "text"),
    [
        (["client-1", "client-2"], [], "expected itself"),
        (["client-0", "client-1", "client-1"], [], "no name twice"),
        (["client-0", "client-1"], ["client-2"], "expected other participants as neighbours"),
        (["client-0", "client-1"], ["client-0"], "expected other participants as neighbours"),
        (["client-0", "client-1"], ["client-1", "client-1"], "each once"),
    ],
)
def test_participants_and_neighbours_that_would_not_cancel_are_refused(participants, neighbours, text):
    federation = Federation(mlp(), (8,), 2, NoiseLevels(1.0, 1.0), graph=lambda name: lambda *_: neighbours)
    upload = Upload(0, 1, torch.zeros(3, federation.published.graph.num_parameters), torch.zeros(0))
    with pytest.raises(ProtocolError, match=f"client-0: .*{text}"):
        federation.noises["client-0"].add_noise(upload, 0, participants)


def test_nan_uploads_are_refused_by_the_senders_name():
    federation = Federation(mlp(), (8,), 2, NoiseLevels(1.0, 1.0))
    uploads = federation.add_noise(federation.bare_uploads(federation.server.start_round(0)), 0)
    uploads["client-1"].terms[0, 3] = float("nan")
    with pytest.raises(NumericalRangeError, match="client-1"):
        federation.recover(uploads, 0)


@pytest.mark.parametrize("levels", [NoiseLevels(-1.0, 1.0), NoiseLevels(1.0, math.inf), NoiseLevels(math.nan, 1.0)])
def test_noise_levels_that_make_no_sense_are_refused(levels):
    model = Federation(mlp(), (8,), 2, SILENT).published
    with pytest.raises(PlanError, match="anna: expected noise levels"):
        PublishedNoiseClient("anna", model, levels, NamedSecrets("anna"), everyone_else("anna"))


def test_a_pair_stream_depends_on_its_secret_and_labels_alone():
    secret = bytes(range(32))
    first, again = PairStream(secret), PairStream(secret)
    assert first.random_bytes(7) + first.random_bytes(25) == again.random_bytes(32)
    others = [PairStream(secret[::-1]), PairStream(secret).child("x"), PairStream(secret).child("y", 1)]
    assert len({s.random_bytes(32) for s in (PairStream(secret), *others)}) == 4
    sample = PairStream(secret).uniform(100_000).numpy()
    assert stats.kstest(sample, "uniform").pvalue > 1e-3


def test_a_short_pair_secret_is_refused():
    with pytest.raises(ProtocolError, match="at least 16 bytes, got 4"):
        PairStream(b"1234")


def test_no_secret_shows_in_a_repr():
    federation = Federation(mlp(), (8,), 2, NoiseLevels(1.0, 1.0))
    federation.server.start_round(0)
    for thing in (federation.server, federation.noises["client-0"], federation.published, PairStream(bytes(32))):
        assert "tensor" not in repr(thing)
        assert len(repr(thing)) < 200
