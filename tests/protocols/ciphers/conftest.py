"""Keys are drawn once for all tests: what takes seconds is the dealer's part."""

from __future__ import annotations

import pytest

from bilateral.protocols.ciphers.exact_ckks import ExactCkks
from bilateral.protocols.ciphers.inner_products import InnerProducts
from bilateral.protocols.ciphers.threshold_paillier import ThresholdPaillier
from bilateral.randomness import SecureRandomness

NAMES = ("a", "b", "c", "d", "e")
SYSTEMS = {"paillier": ThresholdPaillier(40), "ckks": ExactCkks(), "inner-products": InnerProducts(24)}


@pytest.fixture(scope="session")
def dealt():
    """Of every cryptosystem: keys for five."""
    return {name: system.deal(NAMES, SecureRandomness()) for name, system in SYSTEMS.items()}


@pytest.fixture(scope="session")
def dealt_to_others():
    """Of a second run."""
    return {name: system.deal(NAMES, SecureRandomness()) for name, system in SYSTEMS.items()}
