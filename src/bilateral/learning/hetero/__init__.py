"""Clients with different architectures that teach each other by answering queries (PrivHFL, P4).

1. `HeteroClient.local_train`: every client trains its own network on its own data.
2. `HeteroClient.make_queries`: it makes inputs from its own samples (`pools`) and picks some (`selection`).
3. `Answers.summed_logits`: others answer; the client learns the sum of their logits and nothing else.
4. `HeteroClient.retrain`: it learns from its own data and from the answered queries.

A client needs its own data, its randomness and public settings. Its queries and its network go into `Answers` only
(`HeteroClient.offer_to`).
"""
