"""Using a run's model without having it: `bilateral serve` and `bilateral ask`.

model      the run's network as it answers on shares
messages   what asking party, server and dealer say to each other
server, asking, dealer   the three parties, wherever they are: a message comes, a message goes
folder     what a server keeps: identities, kits, and how much each client has asked
sockets    the three as processes of one machine; `here`: as objects of one process, a simulation
"""
