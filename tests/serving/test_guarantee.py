"""What is said of a service: also what a client reads that does not follow the protocol."""

import torch
from tests.serving.harness import NET, Parties, inputs, served

from bilateral.protocols.share.serving import parties
from bilateral.protocols.share.serving.roles import Asking
from bilateral.serving.guarantee import questions_that_read, serving_guarantee

CIRCUIT = served().circuit


def leaks(reveal="logits", limit=5):
    return {(leak.whom, leak.ledger_line): leak.what for leak in serving_guarantee("d", CIRCUIT, reveal, limit).leaks}


def test_so_many_questions_read_a_model_as_it_has_parameters_for_each_output():
    parameters = sum(weight.numel() for weight in NET.parameters())
    assert questions_that_read(CIRCUIT, "logits") == -(-parameters // 3)
    assert questions_that_read(CIRCUIT, "class") == parameters


def test_the_guarantee_says_what_a_client_reads_that_deviates_and_whether_the_limit_allows_it():
    enough = questions_that_read(CIRCUIT, "logits")
    deviates = "a client that does not follow the protocol", 14
    assert f"within some {enough} questions" in leaks()[deviates] and "fewer, for one client" in leaks()[deviates]
    assert "enough for that" in leaks(limit=enough)[deviates]


def test_the_server_is_claimed_blind_only_where_it_keeps_no_copy_of_the_kits_that_it_made():
    (claim,) = [c for c in serving_guarantee("d", CIRCUIT, "class", 5).claims if c.subject == "sealed batch"]
    assert "keeps no copy of the kits that it made" in claim.assumption
    assert "secret identities of d and the clients" in leaks()["a server that kept a copy of the kits", 17]


def test_the_count_of_sums_is_said_to_tell_a_party_that_deviates():
    assert "some bits a question" in leaks()["a client or a server that does not follow the protocol", 17]


def test_a_client_that_shifts_its_shares_reads_the_last_layer(monkeypatch):
    """A negative control: this is why the leak is in the guarantee."""
    one, far = 1 << 20, 1 << 30
    wanted = torch.cat([torch.zeros(1, 6, dtype=torch.int64), one * torch.eye(6, dtype=torch.int64)])

    class Deviating(Asking):
        def compare(self, x, bits):
            if tuple(x.shape) != (7, 6):  # of the watch over ranges, which goes on as if nothing were
                return (yield from super().compare(x, bits))
            bit = yield from super().compare(x - 2 * far, bits)  # every unit is dead
            told = bit.positive_part
            object.__setattr__(bit, "positive_part", lambda: told() + wanted)
            return bit

    monkeypatch.setattr(parties, "Asking", Deviating)
    answers = Parties().opened().ask(inputs(7), "logits")
    last = NET[2].weight.detach()
    assert float((answers[1:] - answers[0] - last.T).abs().max()) < 2.0**-14
