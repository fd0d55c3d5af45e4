"""Heterogeneous runs: clients with different networks teach each other.

kind          what the engines ask of it
server        the algorithm, once: a `ServerRun` over clients that are `here` or `remote`
member        a client that takes its stages in order, here or at its site
steps         which stages there are
record        what the server keeps; `state` is what a site keeps
in_process    everybody here: `bilateral.run_hetero`
conductor     sites elsewhere; `desk` is the site, `messages` what they say to each other, `keys` their keys
"""
