"""Answers over sites (FLARE): serving a run's model as a kind of run.

plan       who asks, who deals, how much of a model is shown and how often
messages   what server and sites say besides: who is there, and whether anybody wants to ask
server     the server's side: the same `AnswerServer`, a line to every site, a thread a client
door       a client's site: it carries messages between the server and whoever asks there, and knows no input
dealing    the dealer's site
kind       all of it as a kind of run; `hosted`: what hosts of processes ask of it
"""
