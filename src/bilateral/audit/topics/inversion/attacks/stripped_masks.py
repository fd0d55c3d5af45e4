"""One client's upload under ring masks, with every mask taken off that an adversary knows.

1. Its self mask: whoever sees the revealed shares (the server; an eavesdropper where there is no TLS) combines them to
   its self seed, which is how the server makes the sum.
2. Its masks with colluding clients, who have the same pair secrets.

What is left carries the masks with the other honest clients. With one of them it is as uniform as before; with none
it is the upload in fixed point (test_stripping_gives_the_upload_but_for_its_last_bits_if_all_partners_collude).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bilateral.audit.views import View
from bilateral.protocols.mask import shamir
from bilateral.protocols.mask.fixed_point import decode_sum
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.keys import KeyRing, roster_digest
from bilateral.protocols.mask.messages import MaskedUpload, MaskOpening, RevealedShares, Roster
from bilateral.protocols.mask.prg import add_masks, bound_seed
from bilateral.protocols.mask.ring_words import RingWords, UploadFormat, format_of
from bilateral.protocols.mask.sealing import Occasion
from bilateral.protocols.mask.survivors import mask_sign
from bilateral.protocols.mask.widths import reduced, unpacked
from bilateral.protocols.membership import ClipNorm
from bilateral.protocols.messages import RoundModel, Upload
from bilateral.protocols.wire import digest


@dataclass(frozen=True, eq=False)
class RingUpload:
    """An upload in the ring: its rows one after the other and its weight (int64), and the format of its rows."""

    values: Tensor = field(repr=False)
    form: UploadFormat
    num_parameters: int
    """Of a row."""

    @property
    def row_lengths(self) -> list[int]:
        """Of every term, of the statistics, and 1 for the weight."""
        terms = [self.num_parameters] * (1 if isinstance(self.form, RingWords) else self.form.num_terms)
        return [*terms, len(self.values) - sum(terms) - 1, 1]


def stripped_upload(view: View, round_index: int, client: str, rings: Mapping[str, KeyRing]) -> Upload | None:
    """The weighted upload as read in fixed point (weight 1), or None if there is no masked upload in the view.

    Ring words stay words.

    `rings`: the keys of the clients that the adversary is.
    """
    found = stripped_values(view, round_index, client, rings)
    if found is None:
        return None
    *terms, num_statistics, _ = found.row_lengths
    if isinstance(found.form, RingWords):
        return Upload(round_index, 1, found.values[None, :-1], torch.zeros(0, dtype=torch.float64))
    shape = (len(terms), found.num_parameters)
    read = decode_sum(found.values, found.form, round_index, shape, num_statistics)
    return Upload(round_index, 1, read.terms, read.statistics)


def stripped_values(view: View, round_index: int, client: str, rings: Mapping[str, KeyRing]) -> RingUpload | None:
    """The same as the integers that are left in the ring."""
    masked = view.message(MaskedUpload, round_index=round_index, sender=client)
    opening = view.message(MaskOpening, round_index=round_index)
    model = view.message(RoundModel, round_index=round_index)
    roster = next((message for _, message in view.messages(Roster)), None)
    if masked is None or opening is None or model is None or roster is None:
        return None
    seed = graph_seed(roster_digest(roster), round_index, opening.attempt, opening.participants)
    graph = PairGraph.of(opening.participants, view.facts.plan.aggregation.settings(), seed)
    occasion = Occasion.of(roster.run_id, opening)
    norm = view.message(ClipNorm, round_index=round_index)
    context = digest(model) if norm is None else digest(norm, model)
    seeds = [(self_seed, -1) for self_seed in _self_seeds(view, round_index, client, graph)]
    for name in graph.neighbours(client):
        for ring, other in ((rings.get(name), client), (rings.get(client), name)):
            if ring is not None:  # either end of a pair knows its mask
                pair_seed = occasion.pair_secret(ring, other, "mask")
                seeds.append((bound_seed(pair_seed, context), -mask_sign(client, name)))
                break
    form = format_of(opening)
    values = unpacked(masked.values, form.width)
    has_words = isinstance(form, RingWords)
    count, num_terms = (len(values) - 1, 1) if has_words else (len(model.parameters), len(opening.fraction_bits) - 1)
    add_masks(values.numpy(), seeds, [count] * num_terms + [len(values) - num_terms * count], form.width)
    return RingUpload(torch.from_numpy(reduced(values.numpy(), form.width)), form, count)


def _self_seeds(view: View, round_index: int, client: str, graph: PairGraph) -> list[bytes]:
    """The client's self seed, if enough shares of it were seen."""
    held: dict[int, bytes] = {}
    for entry, message in view.messages(RevealedShares, round_index=round_index):
        if client in message.owners:
            held[graph.point(entry.sender)] = message.shares[message.owners.index(client)]
    needed = view.facts.plan.aggregation.settings().threshold_of(len(graph.neighbourhood(client)))
    return [shamir.combine(held, needed)] if len(held) >= needed else []
