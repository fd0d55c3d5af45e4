"""A group of clients and a server in one process; every message goes through the wire format."""

from __future__ import annotations

import torch

from bilateral.protocols import wire
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.messages import Upload
from bilateral.randomness import SeededRandomness

RUN = b"run 7"
MODEL = b"the digest of what all of them trained on"
NAMES = ("anna", "bela", "cleo", "dora", "emil", "finn", "gina", "hugo", "ivan", "jana", "karl", "lena")
BEFORE_SHARES, BEFORE_UPLOAD, BEFORE_SIGNATURE, BEFORE_REVEAL, NEVER = range(5)
"""When a client drops out."""


def sent(message):
    """What the other side gets."""
    return wire.decode(wire.encode(message), [type(message)], "the test")


def key_rings(names, seed=0, run_id=RUN):
    identities = {name: Identity.generate(SeededRandomness(seed, "identity", name)) for name in names}
    public = {name: identity.public_bytes for name, identity in identities.items()}
    return {
        name: KeyRing(
            name,
            run_id,
            identities[name],
            {other: key for other, key in public.items() if other != name},
            SeededRandomness(seed, "keys", name),
        )
        for name in names
    }


def upload_of(round_index, seed=0, *, terms=2, parameters=5, statistics=3, weight=None, size=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return Upload(
        round_index,
        weight or 1 + int(torch.randint(0, 40, (1,), generator=generator)),
        size * torch.randn(terms, parameters, generator=generator, dtype=dtype),
        size * torch.randn(statistics, generator=generator, dtype=dtype),
    )


class Group:
    """Clients with agreed keys. The steps of a round are methods; a test may interfere between them."""

    def __init__(self, names, settings=None, *, seed=0, fixed_bounds=None, words=False):
        self.names = tuple(names)
        self.settings = settings or MaskSettings()
        self.rings = key_rings(names, seed)
        self.server = MaskServer(RUN, names, self.settings, fixed_bounds, words=words)
        for name, ring in self.rings.items():
            self.server.register(name, sent(ring.announce()))
        roster = sent(self.server.roster())
        for ring in self.rings.values():
            ring.accept(roster)
        self.clients = {
            name: MaskClient(
                ring, self.settings, SeededRandomness(seed, "mask"), fixed_bounds=fixed_bounds, words=words
            )
            for name, ring in self.rings.items()
        }

    def share(self, opening, names):
        for name in names:
            self.server.collect_shares(name, sent(self.clients[name].open(opening)))

    def route(self):
        routed = self.server.route()
        for name, message in routed.items():
            self.clients[name].receive_shares(sent(message))
        return routed

    def upload(self, uploads, names):
        for name in names:
            client = self.clients[name]
            answer = client.mask(uploads[name], context=MODEL) if client._upload is None else client.mask_again()
            self.server.collect_upload(name, sent(answer))

    def sign(self, names=None):
        listed = sent(self.server.close_uploads(context=MODEL))
        for name in names if names is not None else listed.survivors:
            self.server.collect_signature(name, sent(self.clients[name].sign(listed)))
        return listed

    def reveal(self, names=None):
        request = sent(self.server.request_shares())
        for name in names if names is not None else request.signers:
            self.server.collect_reveal(name, sent(self.clients[name].reveal(request)))
        return request

    def run(self, round_index, uploads, drops=({},), participants=None):
        """One round; `drops[attempt]` says when each client drops in that attempt. Returns (aggregate, opening)."""
        first = next(iter(uploads.values()))
        opening = self.server.open_round(round_index, participants or self.names, len(first.terms) + 1)
        for schedule in (*drops, {}, {}, {}):
            present = {name: schedule.get(name, NEVER) for name in opening.participants}
            self.share(sent(opening), [n for n, stage in present.items() if stage > BEFORE_SHARES])
            routed = self.route()
            self.upload(uploads, [n for n in routed if present[n] > BEFORE_UPLOAD])
            if not self.server.refused:
                break
            opening = self.server.retry()
        listed = self.sign([])
        for name in listed.survivors:
            if present[name] > BEFORE_SIGNATURE:
                self.server.collect_signature(name, sent(self.clients[name].sign(listed)))
        request = self.reveal([])
        for name in request.signers:
            if present[name] > BEFORE_REVEAL:
                self.server.collect_reveal(name, sent(self.clients[name].reveal(request)))
        return self.server.unmask(tuple(first.terms.shape), len(first.statistics)), opening
