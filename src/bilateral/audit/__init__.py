"""The audit: attacks by the parties of the threat model on real runs, with controls, and a verdict per claim.

    recording -> threat (a party's view) -> attacks -> experiments (attack, score, controls) -> verdict

Attacks are given a `View` and return a guess. Experiments score guesses against the truth, on the plan and on its
controls, and report raw figures (`Evidence`). Only `verdict` says what the figures mean.
"""
