"""Kits and counts: made once, never begun anew, and for their owners alone."""

import json

import pytest

from bilateral.errors import CheckpointError, DeploymentError, PlanError
from bilateral.randomness import SeededRandomness
from bilateral.serving.folder import Kit, ServingFolder


def opened(run, dealer="auditor", clients=("anna",), seed=0):
    return ServingFolder(run, dealer, clients, SeededRandomness(seed, "folder"))


def test_a_kit_has_who_it_is_whom_it_trusts_and_where_the_server_is(tmp_path):
    folder = opened(tmp_path, clients=("anna", "carol"))
    folder.listen_at(4711)
    anna, auditor = Kit.read(folder.kit("anna")), Kit.read(folder.kit("auditor"))
    assert (anna.name, anna.dealer, anna.port, anna.deals) == ("anna", "auditor", 4711, False)
    assert set(anna.pinned_keys) == {"anna", "auditor"} and anna.pinned_keys["anna"] == anna.keys.public_bytes
    assert auditor.deals and set(auditor.pinned_keys) == {"anna", "carol", "auditor"}
    assert folder.pinned == auditor.pinned_keys


def test_kits_and_tokens_are_for_their_owner_alone(tmp_path):
    folder = opened(tmp_path)
    folder.listen_at(1)
    secret = [*tmp_path.rglob("kit.json"), tmp_path / "serving" / "service.json"]
    assert len(secret) == 3 and all(path.stat().st_mode & 0o777 == 0o600 for path in secret)
    assert "identity" not in repr(Kit.read(folder.kit("anna")))


def test_opened_again_everything_is_as_it_was(tmp_path):
    first = opened(tmp_path)
    first.listen_at(1)
    first.counters()["anna"].spend(10, 4)
    again = opened(tmp_path, seed=1)
    assert again.pinned == first.pinned and again.tokens == first.tokens and again.port == 1
    assert again.counters()["anna"].used == 4


def test_a_client_that_comes_later_is_made_known_to_the_dealer(tmp_path):
    opened(tmp_path)
    folder = opened(tmp_path, clients=("carol",), seed=1)
    assert folder.clients == ("anna", "carol")
    assert set(Kit.read(folder.kit("auditor")).pinned_keys) == {"anna", "auditor", "carol"}


def test_a_count_that_is_missing_is_spent_and_is_not_made_again(tmp_path):
    opened(tmp_path)
    (tmp_path / "serving" / "questions" / "anna.json").unlink()
    with pytest.raises(CheckpointError, match="it is missing, which counts as spent"):
        opened(tmp_path).counters()


def test_whoever_loses_all_but_the_counts_does_not_reset_them(tmp_path):
    opened(tmp_path).counters()["anna"].spend(None, 9)
    (tmp_path / "serving" / "service.json").unlink()
    assert opened(tmp_path, seed=2).counters()["anna"].used == 9


def test_another_dealer_is_refused_since_kits_name_the_first(tmp_path):
    opened(tmp_path)
    with pytest.raises(PlanError, match="auditor deals for the clients"):
        opened(tmp_path, dealer="another")


@pytest.mark.parametrize("name", ["", "../anna", "server", ".hidden", "a/b", "x" * 65])
def test_a_name_that_is_no_name_is_refused(tmp_path, name):
    with pytest.raises(PlanError, match="cannot be the name of a party"):
        opened(tmp_path, clients=(name,))


def test_nobody_both_deals_and_asks(tmp_path):
    with pytest.raises(PlanError, match="cannot both deal and ask"):
        opened(tmp_path, clients=("auditor",))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"name": 1}', '{"name": "a", "dealer": "b", "port": 1, "token": "zz"}', None]
)
def test_a_kit_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "kit.json"
    path.write_text(
        text or json.dumps({"name": "a", "dealer": "b", "port": "1", "token": "", "identity": "", "pinned": 1})
    )
    with pytest.raises(DeploymentError, match="kit"):
        Kit.read(tmp_path)


def test_a_kit_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DeploymentError, match="There is no"):
        Kit.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"unknown": 1}', "{}"])
def test_what_a_service_keeps_is_not_taken_from_a_damaged_file(tmp_path, text):
    opened(tmp_path)
    (tmp_path / "serving" / "service.json").write_text(text)
    with pytest.raises((CheckpointError, DeploymentError), match=r"service\.json"):
        opened(tmp_path)
