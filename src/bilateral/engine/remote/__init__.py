"""Sites that are elsewhere, whatever the kind of run, without saying how they are reached.

    edge    the edge of a site: answers and refusals
    lines   messages to sites in order, each once, and their replies
    loopback   messages between processes of one machine

A transport (NVIDIA FLARE in `engine/flare`) brings the calls (`Sites`) and hosts the two ends.
"""
