"""A federation whose sites are elsewhere, without saying how they are reached: the part of a distributed engine that is
ours.

    conductor    the server in one term of a run: enrols the sites, then drives the round loop
    exchange     packets to sites and replies from them, as bytes; who did not answer, and at which stage
    attendance   who is there; waits for enough, notices who comes back
    site_desk    the site in one term: its own data, one client object, one packet at a time
    enrolment    the messages before the first round

Heterogeneous runs (`bilateral hetero`) have a conductor, a desk, a transport and a memory of their own, `hetero_*`:
their sites keep their networks and sums to themselves, and every message counts.

A transport (NVIDIA FLARE in `engine/flare`) brings a `SiteCall` and hosts the two ends.
"""
