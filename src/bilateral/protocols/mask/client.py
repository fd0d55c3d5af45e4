"""The client's half of secure aggregation. `messages` has the numbered list of messages.

1. `open`: draw a self seed and an escrow key, share both among the neighbours
2. `receive_shares`: open what the neighbours shared
3. `mask`: encode the upload, add the self mask and a mask for each active neighbour; or refuse for range (uploads of
   ring words are taken as they are)
4. `sign`: check over whom the sum will be, and sign just one such list a round
5. `reveal`: given enough signatures on that very list, one share of each neighbour, then forget the round

Guarantee: the server and fewer than a threshold of a client's neighbourhood learn nothing about its upload beyond the
sum over the signed survivors, which all were shown the same opening and trained on the same model. A sum has at least
`MaskSettings.floor_of` the participants of the round's first opening. Whatever is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from bilateral.arguments import checked
from bilateral.errors import (
    AuthenticationError,
    NumericalRangeError,
    PlanError,
    ProtocolError,
    SealedShareError,
    ThresholdError,
)
from bilateral.protocols.mask import shamir
from bilateral.protocols.mask.fixed_point import RowsOutOfRange, encode_upload
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.kept_upload import KeptUpload
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.last_bits import KEY_BYTES, LastBits
from bilateral.protocols.mask.messages import (
    MaskedUpload,
    MaskOpening,
    RangeRefusal,
    RevealedShares,
    RoutedShares,
    SealedShares,
    SurvivorList,
    SurvivorSignature,
    UnmaskRequest,
)
from bilateral.protocols.mask.openings import OpeningHistory
from bilateral.protocols.mask.prg import add_masks, bound_seed
from bilateral.protocols.mask.ring_words import RingWords, UploadFormat, words_of
from bilateral.protocols.mask.sealing import (
    SEED_BYTES,
    Occasion,
    SharePair,
    make_escrow,
    seal,
    seed_digest,
    share_digest,
    unseal,
)
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.survivors import check_context, check_names, check_sum, mask_sign, signed_content
from bilateral.protocols.mask.widths import packed
from bilateral.protocols.messages import Upload
from bilateral.randomness import Randomness, SecureRandomness


@dataclass(repr=False)
class _Attempt:
    """What the client keeps of the current attempt. Secret."""

    occasion: Occasion
    form: UploadFormat
    graph: PairGraph
    threshold: int
    floor: int
    self_seed: bytes
    pair_seeds: dict[str, bytes]
    shares: dict[str, SharePair] = field(default_factory=dict)
    active: tuple[str, ...] | None = None
    has_answered: bool = False
    has_uploaded: bool = False
    context: bytes = b""
    """Until it uploads."""
    listed: SurvivorList | None = None


class MaskClient:
    """Masks the uploads of one client. One object a run: it remembers which rounds it must not repeat.

    `fixed_bounds`: bounds on |weight * value| a row that the plan fixes. Such a client takes part in no other format,
    and says nothing about sizes: a value beyond its bound is an error here, not a message. Every value carries noise
    there and weights are 1; elsewhere last bits are drawn, which keep weights out of sums, by a secret of this client
    from `last_bits` or from `randomness`: once for an upload, however often it is sent.

    `words`: uploads are ring words (`ring_words`), and no opening for numbers is answered; without it, none for words.
    `keeps_on_disk`: where its upload waits for the end of the round (`KeptUpload`).
    """

    @checked
    def __init__(
        self,
        key_ring: KeyRing,
        settings: MaskSettings,
        randomness: Randomness | None = None,
        *,
        fixed_bounds: Sequence[float] | None = None,
        last_bits: Randomness | None = None,
        words: bool = False,
        keeps_on_disk: bool = False,
    ) -> None:
        if words and fixed_bounds is not None:
            raise PlanError("Ring words have no bounds.", remedy="Give `words` or `fixed_bounds`.")
        key_ring.claim("mask")
        self.name = key_ring.name
        self._ring = key_ring
        self._settings = settings
        self._randomness = (randomness or SecureRandomness()).child("mask client", self.name)
        self._openings = OpeningHistory(self.name, settings, fixed_bounds, words=words)
        self._attempt: _Attempt | None = None
        self._upload: KeptUpload | None = None
        self._keeps_on_disk = keeps_on_disk
        drawn = last_bits or self._randomness.child("last bits")
        self._bits_secret = None if words or fixed_bounds is not None else drawn.random_bytes(KEY_BYTES)

    def open(self, message: MaskOpening) -> SealedShares:
        """Step 1. A neighbourhood is never smaller than the client's own settings say: it computes the graph itself."""
        form = self._openings.check(message, self._ring.clients)
        occasion = Occasion.of(self._ring.run_id, message)
        seed = graph_seed(self._ring.roster_digest, message.round_index, message.attempt, message.participants)
        graph = PairGraph.of(message.participants, self._settings, seed)
        threshold = self._settings.threshold_of(len(graph.neighbourhood(self.name)))
        randomness = self._randomness.child("round", message.round_index, "attempt", message.attempt)
        self_seed, escrow_key = randomness.random_bytes(SEED_BYTES), randomness.random_bytes(SEED_BYTES)
        neighbours = graph.neighbours(self.name)
        pair_seeds = {other: occasion.pair_secret(self._ring, other, "mask") for other in neighbours}
        held = _split_both(self_seed, escrow_key, graph, self.name, threshold, randomness)
        if message.round_index != self._openings.latest[0]:
            self._upload = None
        floor = self._openings.take(message)
        self._attempt = _Attempt(
            occasion, form, graph, threshold, floor, self_seed, pair_seeds, shares={self.name: held[self.name]}
        )
        return self._sealed(self._attempt, held, escrow_key)

    def receive_shares(self, message: RoutedShares) -> None:
        """Step 2. Its active neighbours are those whose shares it holds. `SealedShareError` names who dealt wrongly."""
        attempt = self._current(message)
        if attempt.active is not None:
            raise ProtocolError(f"{self.name}: the server routed shares twice in one attempt.")
        check_names(message.senders, attempt.graph.neighbours(self.name), f"{self.name}: RoutedShares from the server")
        if not len(message.senders) == len(message.sealed) == len(message.self_digests) == len(message.escrow_digests):
            raise ProtocolError(f"{self.name}: RoutedShares from the server has lists of different lengths.")
        if len(message.senders) + 1 < attempt.threshold:
            raise ThresholdError(
                f"{self.name}: expected shares of at least {attempt.threshold - 1} neighbours, "
                f"got {len(message.senders)}.",
                remedy="My secrets could not be reconstructed; repeat the round with the clients that are there.",
            )
        opened: dict[str, SharePair] = {}
        columns = zip(message.senders, message.sealed, message.self_digests, message.escrow_digests, strict=True)
        for sender, sealed, *digests in columns:
            shares = opened[sender] = unseal(self._ring, attempt.occasion, sender, sealed)
            expected = [
                share_digest(attempt.occasion, "self", sender, self.name, shares.of_self_seed),
                share_digest(attempt.occasion, "escrow", sender, self.name, shares.of_escrow_key),
            ]
            if digests != expected:
                raise SealedShareError(
                    f"{self.name}: the shares of {sender} are not those it committed to.", dealer=sender
                )
        attempt.shares.update(opened)
        attempt.active = message.senders

    def mask(self, upload: Upload, *, context: bytes) -> MaskedUpload | RangeRefusal:
        """Step 3. Once an attempt: two uploads under one mask would show their difference.

        `context`: a digest of what this client was sent to train on (`wire.digest`). The masks depend on it and the
        signature covers it: that is what tells clients that all trained on the same model.
        """
        check_context(context, f"{self.name}: mask")
        answer = self._masked(upload, context)
        self._upload = KeptUpload(upload, context, on_disk=self._keeps_on_disk)
        return answer

    def mask_again(self) -> MaskedUpload | RangeRefusal:
        """Step 3 of a further attempt: the upload of this round again, under fresh masks."""
        if self._upload is None:
            raise ProtocolError(f"{self.name}: there is no upload of this round to mask again.")
        return self._masked(*self._upload.both())

    def _masked(self, upload: Upload, context: bytes) -> MaskedUpload | RangeRefusal:
        attempt = self._attempt
        if attempt is None or attempt.active is None or attempt.has_answered:
            raise ProtocolError(
                f"{self.name}: an upload was not asked for.", remedy="Each attempt takes one upload, after the shares."
            )
        occasion = attempt.occasion
        if upload.round_index != occasion.round_index:
            raise ProtocolError(
                f"{self.name}: the upload is of round {upload.round_index}, the current round is "
                f"{occasion.round_index}."
            )
        encoded = self._encoded(upload, attempt.form)
        if isinstance(encoded, RowsOutOfRange) and self._openings.has_fixed_bounds:
            raise NumericalRangeError(
                f"Upload from {self.name}: a value is beyond the fixed bounds of this run.",
                remedy="Clip before masking; nothing was sent.",
            )
        attempt.has_answered = True
        attempt.context = context
        if isinstance(encoded, RowsOutOfRange):
            return RangeRefusal(occasion.round_index, occasion.attempt, encoded.rows, encoded.bound_bits)
        seeds = [(attempt.self_seed, 1)]
        seeds += [
            (bound_seed(attempt.pair_seeds[other], context), mask_sign(self.name, other)) for other in attempt.active
        ]
        lengths = [upload.terms.shape[1]] * len(upload.terms) + [len(upload.statistics) + 1]
        add_masks(encoded.numpy(), seeds, lengths, attempt.form.width)
        attempt.has_uploaded = True
        return MaskedUpload(occasion.round_index, occasion.attempt, packed(encoded.numpy(), attempt.form.width))

    def sign(self, message: SurvivorList) -> SurvivorSignature:
        """Step 4. One list a round, in whatever attempt; the same list again gets the same signature."""
        attempt = self._current(message)
        if attempt.listed is not None and message != attempt.listed:
            raise AuthenticationError(
                f"{self.name}: the server showed a second, different list of survivors in round {message.round_index}."
            )
        self._check_list(message, attempt)
        attempt.listed = message
        self._openings.signed_round = message.round_index
        signature = self._ring.sign(self._statement(attempt, message))
        return SurvivorSignature(message.round_index, message.attempt, signature)

    def reveal(self, message: UnmaskRequest) -> RevealedShares:
        """Step 5. Once; afterwards the round's secrets are gone."""
        attempt = self._current(message)
        if attempt.listed is None or attempt.active is None:
            raise ProtocolError(f"{self.name}: the server asked for shares before a list was signed.")
        self._check_signatures(message, attempt)
        survivors = set(attempt.listed.survivors)
        owners = tuple(sorted(attempt.shares))
        shares = tuple(
            attempt.shares[owner].of_self_seed if owner in survivors else attempt.shares[owner].of_escrow_key
            for owner in owners
        )
        self._attempt = self._upload = None
        return RevealedShares(message.round_index, message.attempt, owners, shares)

    def _encoded(self, upload: Upload, form: UploadFormat) -> Tensor | RowsOutOfRange:
        if isinstance(form, RingWords):
            return words_of(upload, self.name)
        last_bits = None if self._bits_secret is None else LastBits.of(upload, self._bits_secret)
        return encode_upload(upload, form, self.name, last_bits)

    def _sealed(self, attempt: _Attempt, held: dict[str, SharePair], escrow_key: bytes) -> SealedShares:
        occasion, neighbours = attempt.occasion, attempt.graph.neighbours(self.name)
        return SealedShares(
            occasion.round_index,
            occasion.attempt,
            recipients=neighbours,
            sealed=tuple(seal(self._ring, occasion, other, held[other]) for other in neighbours),
            self_digests=tuple(
                share_digest(occasion, "self", self.name, holder, shares.of_self_seed)
                for holder, shares in held.items()
            ),
            escrow_digests=tuple(
                share_digest(occasion, "escrow", self.name, holder, shares.of_escrow_key)
                for holder, shares in held.items()
            ),
            seed_digest=seed_digest(occasion, self.name, attempt.self_seed),
            escrow=make_escrow(occasion, self.name, escrow_key, list(attempt.pair_seeds.values())),
        )

    def _check_list(self, message: SurvivorList, attempt: _Attempt) -> None:
        what = f"{self.name}: SurvivorList from the server"
        check_names(message.sharers, attempt.graph.participants, what)
        check_names(message.survivors, message.sharers, what)
        if not attempt.has_uploaded or self.name not in message.survivors:
            raise ProtocolError(f"{what}: {self.name} is asked to sign a list without its upload in it.")
        if set(attempt.graph.neighbours(self.name)).intersection(message.sharers) != set(attempt.active or ()):
            raise AuthenticationError(f"{what}: the sharers are not those whose shares were routed to {self.name}.")
        check_sum(attempt.graph, attempt.floor, message.survivors)

    def _check_signatures(self, message: UnmaskRequest, attempt: _Attempt) -> None:
        assert attempt.listed is not None
        what = f"{self.name}: UnmaskRequest from the server"
        check_names(message.signers, attempt.listed.survivors, what)
        if len(message.signers) != len(message.signatures):
            raise ProtocolError(f"{what} has {len(message.signers)} signers and {len(message.signatures)} signatures.")
        if len(message.signers) < attempt.floor:
            raise ThresholdError(f"{what}: expected at least {attempt.floor} signatures, got {len(message.signers)}.")
        statement = self._statement(attempt, attempt.listed)
        for signer, signature in zip(message.signers, message.signatures, strict=True):
            if not self._ring.has_signed(signer, signature, statement):
                raise AuthenticationError(
                    f"{what}: the signature of {signer} is not on the opening, model and list that {self.name} signed.",
                    remedy="The server may have shown different ones to different clients. Nothing was revealed.",
                )

    def _statement(self, attempt: _Attempt, listed: SurvivorList) -> bytes:
        return self._ring.statement(*signed_content(attempt.occasion, attempt.context, listed))

    def _current(self, message: RoutedShares | SurvivorList | UnmaskRequest) -> _Attempt:
        if self._attempt is None or (message.round_index, message.attempt) != self._openings.latest:
            raise ProtocolError(
                f"{self.name}: {type(message).__name__} from the server is of round {message.round_index} attempt "
                f"{message.attempt}, which is not under way.",
                remedy="It came late, early or twice; it is not used.",
            )
        return self._attempt


def _split_both(
    self_seed: bytes, escrow_key: bytes, graph: PairGraph, owner: str, threshold: int, randomness: Randomness
) -> dict[str, SharePair]:
    """Shares of both secrets for everyone in the owner's neighbourhood, in the order of the names."""
    holders = graph.neighbourhood(owner)
    points = [graph.point(holder) for holder in holders]
    of_seed = shamir.split(self_seed, threshold, points, randomness)
    of_key = shamir.split(escrow_key, threshold, points, randomness)
    return {holder: SharePair(of_seed[point], of_key[point]) for holder, point in zip(holders, points, strict=True)}
