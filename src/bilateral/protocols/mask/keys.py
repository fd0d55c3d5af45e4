"""Key agreement, once a run: every two clients get a secret that the routing server does not know.

a. client -> server: `KeyAnnouncement`, an X25519 key of this run, signed together with the run and the name by the
   client's long-lived Ed25519 identity.
b. server -> clients: `Roster`, all announcements.
c. Each client checks the roster against the identity keys that it has pinned, and derives pair secrets.

Guarantee: a server that puts keys of its own in the middle, moves an announcement to another run or another name, or
shows a client a second roster is refused by name, as long as identity keys were pinned truthfully. What is derived for
a round says nothing about other rounds (HKDF with separate labels), so one agreement serves a whole run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from bilateral.arguments import checked
from bilateral.errors import AuthenticationError, ProtocolError, ThresholdError
from bilateral.protocols.mask.injective import Part, injective
from bilateral.protocols.mask.messages import KeyAnnouncement, Roster
from bilateral.randomness import Randomness, SecureRandomness

KEY_BYTES = 32
NO_OPENING = b""
"""In place of an opening's digest, where no message of the protocol opens a round."""
RUN_ID_BYTES = 32
"""As long as a hash: nobody finds two sets of facts, or two terms, with one id."""
SIGNATURE_BYTES = 64
_FIELD = 2**255 - 19
_LOW_ORDER = frozenset(
    {
        0,
        1,
        _FIELD - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)
"""u-coordinates of the points of small order on Curve25519 and its twist: the shared secret would be zero."""


class Identity:
    """A client's long-lived signing key. Others pin `public_bytes`."""

    @checked
    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self.public_bytes = private_key.public_key().public_bytes_raw()

    @classmethod
    @checked
    def generate(cls, randomness: Randomness | None = None) -> Identity:
        """A new one: from the operating system's generator, unless a simulation is to be repeatable."""
        drawn = (randomness or SecureRandomness()).random_bytes(KEY_BYTES)
        return cls(Ed25519PrivateKey.from_private_bytes(drawn))

    @classmethod
    @checked
    def load(cls, secret: bytes) -> Identity:
        """The identity whose `secret_bytes` were kept."""
        if len(secret) != KEY_BYTES:
            raise AuthenticationError(
                f"Expected the {KEY_BYTES} bytes of an identity's secret key, got {len(secret)}.",
                remedy="Read the file that `secret_bytes` was written to, whole and as bytes.",
            )
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    def secret_bytes(self) -> bytes:
        """What a client keeps to be the same one in another run: 32 bytes that nobody else may read."""
        return self._private_key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._private_key.sign(message)


@lru_cache(maxsize=4096)  # public; in a simulation everybody checks the same ones
def is_signed(identity_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` on `message` is of the owner of `identity_key`. False, never an error, on malformed input."""
    try:
        Ed25519PublicKey.from_public_bytes(identity_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_announcement(sender: str, announcement: KeyAnnouncement, run_id: bytes) -> None:
    """Refuse an announcement that is not a sound one of `sender` for this run."""
    if announcement.run_id != run_id:
        raise AuthenticationError(f"The key announced by {sender} is of another run.", remedy="Announce a fresh one.")
    if announcement.client != sender:
        raise AuthenticationError(f"{sender} announced a key in the name of {announcement.client!r}.")
    keys, signature = (announcement.agreement_key, announcement.identity_key), announcement.signature
    if any(len(key) != KEY_BYTES for key in keys) or len(signature) != SIGNATURE_BYTES:
        raise AuthenticationError(f"The key or the signature announced by {sender} has the wrong length.")
    if int.from_bytes(announcement.agreement_key, "little") % 2**255 % _FIELD in _LOW_ORDER:
        raise AuthenticationError(f"The key announced by {sender} has small order: every secret with it is known.")
    signed = _announcement_content(run_id, sender, *keys)
    if not is_signed(announcement.identity_key, signature, signed):
        raise AuthenticationError(
            f"The signature on the key announced by {sender} is not of its identity.",
            remedy="The key was changed on its way, or the server tried to replace it.",
        )


class KeyDirectory:
    """Server: collects the announcements of a run.

    `pinned`: the identity keys that clients have pinned for each other. Clients refuse a roster with another one, so a
    server that does not know them lets one client spoil the roster for all. `min_clients`: a smaller roster is no use.
    """

    def __init__(
        self, run_id: bytes, names: Sequence[str], pinned: Mapping[str, bytes] | None = None, min_clients: int = 2
    ) -> None:
        self.run_id = run_id
        self._names = frozenset(names)
        self._pinned = pinned
        self._min_clients = min_clients
        self._announced: dict[str, KeyAnnouncement] = {}
        self._roster: Roster | None = None

    def register(self, sender: str, announcement: KeyAnnouncement) -> None:
        """Step a. A refused announcement changes nothing."""
        if sender not in self._names:
            raise AuthenticationError(f"{sender!r} is not a client of this run.")
        if self._roster is not None:
            raise ProtocolError(f"{sender} announced its key after the roster was closed.", remedy="Join the next run.")
        if sender in self._announced:
            raise ProtocolError(f"{sender} announced a key twice.", remedy="One key a client and run is taken.")
        check_announcement(sender, announcement, self.run_id)
        if self._pinned is not None and announcement.identity_key != self._pinned.get(sender):
            raise AuthenticationError(f"The identity key that {sender} announced is not the pinned one.")
        self._announced[sender] = announcement

    def roster(self) -> Roster:
        """Step b. Closes the registration: clients accept one roster a run."""
        if self._roster is None:
            if len(self._announced) < self._min_clients:
                raise ThresholdError(
                    f"Expected announced keys of {self._min_clients} or more clients, got {len(self._announced)}.",
                    remedy="Ask the others again; the roster is still open.",
                )
            clients = tuple(sorted(self._announced))
            found = [self._announced[name] for name in clients]
            self._roster = Roster(
                self.run_id,
                clients,
                tuple(announcement.agreement_key for announcement in found),
                tuple(announcement.identity_key for announcement in found),
                tuple(announcement.signature for announcement in found),
            )
        return self._roster


class KeyRing:
    """Client: its keys of one run, and the secrets it has with every other client."""

    @checked
    def __init__(
        self,
        name: str,
        run_id: bytes,
        identity: Identity,
        pinned: Mapping[str, bytes],
        randomness: Randomness | None = None,
    ) -> None:
        self.name = name
        self.run_id = run_id
        self._identity = identity
        self._pinned = dict(pinned)
        secret = (randomness or SecureRandomness()).child("agreement key", run_id.hex(), name).random_bytes(KEY_BYTES)
        self._private_key = X25519PrivateKey.from_private_bytes(secret)
        self._public_key = self._private_key.public_key().public_bytes_raw()
        self._roster: Roster | None = None
        self._digest = b""
        self._announcements: dict[str, KeyAnnouncement] = {}
        self._pair_secrets: dict[str, bytes] = {}
        self._claimed: set[str] = set()

    def announce(self) -> KeyAnnouncement:
        """Step a."""
        keys = (self._public_key, self._identity.public_bytes)
        signature = self._identity.sign(_announcement_content(self.run_id, self.name, *keys))
        return KeyAnnouncement(self.run_id, self.name, *keys, signature)

    def accept(self, roster: Roster) -> None:
        """Step c. Takes over the roster, or refuses it and names the client whose entry is wrong."""
        if self._roster is not None:
            if roster != self._roster:
                raise AuthenticationError(f"{self.name}: the server showed a second, different roster for one run.")
            return
        announcements = _entries(roster, self.run_id, self.name)
        if announcements.get(self.name) != self.announce():
            raise AuthenticationError(f"{self.name}: the roster has another entry than mine for {self.name}, or none.")
        for client, announcement in announcements.items():
            if client == self.name:
                continue
            if client not in self._pinned:
                raise AuthenticationError(
                    f"{self.name}: the roster has {client!r}, whose identity key is not pinned.",
                    remedy="Get that client's identity key from a source you trust, or leave the client out.",
                )
            if announcement.identity_key != self._pinned[client]:
                raise AuthenticationError(
                    f"{self.name}: the identity key of {client} is not the pinned one.",
                    remedy="The server may have replaced it. Ask that client.",
                )
            check_announcement(client, announcement, self.run_id)
        self._roster, self._announcements, self._digest = roster, announcements, roster_digest(roster)

    @property
    def clients(self) -> tuple[str, ...]:
        """All clients of the run, this one too."""
        return self._accepted().clients

    @property
    def roster_digest(self) -> bytes:
        self._accepted()
        return self._digest

    def pair_secret(self, other: str) -> bytes:
        """32 bytes that only this client and `other` know, the same at both, bound to the run and both keys."""
        if other not in self._pair_secrets:
            self._pair_secrets[other] = self._agree(other)
        return self._pair_secrets[other]

    def round_secret(self, other: str, purpose: str, round_index: int, attempt: int, opening_digest: bytes) -> bytes:
        """32 bytes for one purpose in one attempt at one round, as it was opened; says nothing about any other."""
        info = _round_label(self.run_id, purpose, round_index, attempt, opening_digest)
        return HKDFExpand(SHA256(), KEY_BYTES, info).derive(self.pair_secret(other))

    def statement(self, *content: Part) -> bytes:
        """What is signed to state `content` in this run."""
        return statement_content(self.roster_digest, *content)

    def sign(self, statement: bytes) -> bytes:
        """This client's signature on a statement."""
        return self._identity.sign(statement)

    def has_signed(self, client: str, signature: bytes, statement: bytes) -> bool:
        """Whether `client` of this run signed just this statement."""
        self._accepted()
        known = self._announcements.get(client)
        return known is not None and is_signed(known.identity_key, signature, statement)

    def claim(self, purpose: str) -> None:
        """Refuse a second user of the round secrets for `purpose`: it could repeat a round, and with it a mask."""
        if purpose in self._claimed:
            raise ProtocolError(
                f"{self.name}: the keys of this run are already in use for {purpose!r}.",
                remedy="Keep one client object a run, or start a run with new keys.",
            )
        self._claimed.add(purpose)

    def _accepted(self) -> Roster:
        if self._roster is None:
            raise ProtocolError(f"{self.name}: no roster was accepted yet.", remedy="Call accept(roster) first.")
        return self._roster

    def _agree(self, other: str) -> bytes:
        self._accepted()
        if other == self.name or other not in self._announcements:
            raise ProtocolError(f"{self.name}: {other!r} is no other client of this run.")
        key_of_other = self._announcements[other].agreement_key
        try:
            shared = self._private_key.exchange(X25519PublicKey.from_public_bytes(key_of_other))
        except ValueError as error:
            raise AuthenticationError(f"{self.name}: no secret can be agreed with the key of {other}.") from error
        (first, first_key), (second, second_key) = sorted(((self.name, self._public_key), (other, key_of_other)))
        info = injective("bilateral pair secret v1", self.run_id, first, first_key, second, second_key)
        return HKDF(SHA256(), KEY_BYTES, None, info).derive(shared)


def roster_digest(roster: Roster) -> bytes:
    """SHA-256 over the whole roster."""
    content = (roster.run_id, roster.clients, roster.agreement_keys, roster.identity_keys, roster.signatures)
    return hashlib.sha256(injective("bilateral roster v1", *content)).digest()


def statement_content(digest: bytes, *content: Part) -> bytes:
    """What is signed for a statement in the run with this roster digest."""
    return injective("bilateral statement v1", digest, *content)


@lru_cache(maxsize=1024)  # public; the same for all partners
def _round_label(run_id: bytes, purpose: str, round_index: int, attempt: int, opening_digest: bytes) -> bytes:
    return injective("bilateral round secret v1", run_id, purpose, round_index, attempt, opening_digest)


def _announcement_content(run_id: bytes, name: str, agreement_key: bytes, identity_key: bytes) -> bytes:
    return injective("bilateral key announcement v1", run_id, name, agreement_key, identity_key)


def _entries(roster: Roster, run_id: bytes, reader: str) -> dict[str, KeyAnnouncement]:
    if roster.run_id != run_id:
        raise AuthenticationError(f"{reader}: the server sent the roster of another run.")
    lengths = {len(roster.clients), len(roster.agreement_keys), len(roster.identity_keys), len(roster.signatures)}
    if len(lengths) != 1 or len(roster.clients) < 2:
        raise ProtocolError(
            f"{reader}: the server's roster has {len(roster.clients)} clients and keys of other numbers."
        )
    if list(roster.clients) != sorted(set(roster.clients)):
        raise AuthenticationError(f"{reader}: the server's roster has a client twice, or is not in order.")
    columns = zip(roster.clients, roster.agreement_keys, roster.identity_keys, roster.signatures, strict=True)
    return {client: KeyAnnouncement(run_id, client, *keys) for client, *keys in columns}
