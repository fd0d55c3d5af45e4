"""Rounds: clients train one model together.

kind             what the engines ask of it
loop             the server's side: a `ServerRun` whose steps are rounds
in_process       everybody here: `bilateral.run`
conductor        sites elsewhere: enrols them, then the same loop
remote_exchange  packets to sites and replies from them, as bytes; who did not answer, and at which stage
attendance       who is there; waits for enough, notices who comes back
desk             the site: its own data, one client object, one packet at a time
enrolment        the messages before the first round
"""
