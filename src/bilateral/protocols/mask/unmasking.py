"""Step 6: from the revealed shares to the sum. It takes the sum of the uploads out of the record, and nothing else.

1. Combine the shares: self seeds of survivors, escrow keys of dropped sharers.
2. Open the escrows of the dropped; check every self seed against its owner's commitment. Who dealt wrongly is named.
3. Add up the survivors' uploads, subtract their self masks, and subtract what their masks with the dropped leave over.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bilateral.errors import AuthenticationError, LostSumError, ProtocolError, ThresholdError
from bilateral.protocols.mask import shamir
from bilateral.protocols.mask.attempt_record import AttemptRecord
from bilateral.protocols.mask.prg import add_masks, bound_seed
from bilateral.protocols.mask.sealing import open_escrow, seed_digest
from bilateral.protocols.mask.survivors import mask_sign
from bilateral.protocols.mask.widths import reduced


def unmasked_sum(record: AttemptRecord, row_lengths: list[int]) -> Tensor:
    """The sum of the survivors' encoded uploads, exactly, as int64."""
    assert record.listed is not None
    survivors = record.listed.survivors
    num_values, width = sum(row_lengths), record.form.width
    for sender in survivors:
        record.expect_values(sender, record.uploads[sender], num_values)
    secrets = _reconstructed(record)
    seeds = [(secrets[name], -1) for name in survivors]
    for dropped in sorted(set(record.sharers).difference(survivors)):
        for name, pair_seed in _opened_escrow(record, dropped, secrets[dropped]).items():
            if name in survivors:
                seeds.append((bound_seed(pair_seed, record.context), -mask_sign(name, dropped)))
    total = record.sum_of_uploads(num_values)
    add_masks(total, seeds, row_lengths, width)
    return torch.from_numpy(reduced(total, width))


def _reconstructed(record: AttemptRecord) -> dict[str, bytes]:
    """Self seed of every survivor, escrow key of every other sharer. All counts are checked before anything is done."""
    assert record.listed is not None
    shares: dict[str, dict[int, bytes]] = {name: {} for name in record.sharers}
    for revealer, message in record.reveals.items():
        for owner, share in zip(message.owners, message.shares, strict=True):
            shares[owner][record.graph.point(revealer)] = share
    for owner, held in shares.items():
        expected = record.threshold_around(owner)
        if len(held) < expected:
            raise ThresholdError(
                f"Expected at least {expected} shares of the secret of {owner}, got {len(held)}.",
                remedy="The sum of this round is lost; go on with the next round.",
            )
    secrets = {owner: _combined(record, owner, held) for owner, held in shares.items()}
    for owner in record.listed.survivors:
        if seed_digest(record.occasion, owner, secrets[owner]) != record.sealed[owner].seed_digest:
            raise LostSumError(
                f"The shares of {owner} do not combine to the self seed that it committed to.",
                culprit=owner,
                remedy="That client does not follow the protocol; leave it out of the next round.",
            )
    return secrets


def _combined(record: AttemptRecord, owner: str, held: dict[int, bytes]) -> bytes:
    try:
        return shamir.combine(held, record.threshold_around(owner))
    except ProtocolError as error:
        raise LostSumError(f"The shares that {owner} dealt are not of one secret.", culprit=owner) from error


def _opened_escrow(record: AttemptRecord, dropped: str, key: bytes) -> Mapping[str, bytes]:
    try:
        return open_escrow(
            record.occasion, dropped, key, record.sealed[dropped].escrow, record.graph.neighbours(dropped)
        )
    except AuthenticationError as error:
        raise LostSumError(str(error), culprit=dropped) from error
