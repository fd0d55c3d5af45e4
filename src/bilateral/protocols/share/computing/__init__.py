"""Two computing parties who share every number, and a dealer who only deals: a circuit, whoever plays which part.

| part | has | in PrivHFL | in sealed training |
|---|---|---|---|
| first | the weights, in the clear | the answering client | the server |
| second | the other share of every value | the server | a client |
| dealer | correlated randomness, and nothing that depends on a value | the querying client | a third party |

The dealer's seed with the first party gives that party's part of everything dealt; what it sends goes to the second.
"""
