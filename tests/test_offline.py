"""The tests themselves: they call no other machine."""

import socket

import pytest


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])  # addresses for documentation: nobody has them
def test_a_test_that_calls_another_machine_fails(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as caller, pytest.raises(AssertionError, match="stay on this machine"):
        caller.connect((address, 9))
