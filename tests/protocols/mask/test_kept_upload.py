"""An upload that waits for the end of its round comes back bit for bit, from memory or from a file without a name."""

import torch
from tests.protocols.mask.harness import NAMES, Group, upload_of

from bilateral.protocols.mask import kept_upload
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.kept_upload import KeptUpload
from bilateral.protocols.messages import Upload


def large(seed, dtype=torch.float32):
    draws = torch.Generator().manual_seed(seed)
    terms = torch.randn(2, kept_upload.LEAST_BYTES // 8, generator=draws, dtype=dtype)
    return Upload(3, 7, terms, torch.randn(5, generator=draws, dtype=dtype))


def test_a_large_upload_goes_to_disk_where_that_is_asked_for_and_comes_back_bit_for_bit():
    for dtype in (torch.float32, torch.float64):
        upload = large(1, dtype)
        kept = KeptUpload(upload, b"model", on_disk=True)
        terms, statistics = upload.terms.clone(), upload.statistics.clone()
        upload.terms.zero_()  # memory of an upload is used again
        for _ in range(2):
            found, context = kept.both()
            assert context == b"model"
            assert (found.round_index, found.weight) == (3, 7)
            assert torch.equal(found.terms, terms)
            assert torch.equal(found.statistics, statistics)
        assert kept.is_on_disk


def test_small_uploads_and_those_of_a_client_alone_stay_in_memory():
    small = upload_of(0, 1)
    assert not KeptUpload(small, b"", on_disk=True).is_on_disk
    assert KeptUpload(small, b"", on_disk=True).both()[0] is small
    assert not KeptUpload(large(1), b"").is_on_disk


def test_another_attempt_from_disk_gives_the_sum_that_one_from_memory_gives(monkeypatch):
    monkeypatch.setattr(kept_upload, "LEAST_BYTES", 1)
    totals = []
    for on_disk in (False, True):
        group = Group(NAMES[:4])
        for client in group.clients.values():
            assert isinstance(client, MaskClient)
            client._keeps_on_disk = on_disk
        uploads = {name: upload_of(0, number) for number, name in enumerate(NAMES[:4])}
        uploads["bela"] = upload_of(0, 9, size=2.0**23)
        total, opening = group.run(0, uploads)
        assert opening.attempt == 1
        totals.append(total)
    assert torch.equal(totals[0].terms, totals[1].terms)
    assert torch.equal(totals[0].statistics, totals[1].statistics)
