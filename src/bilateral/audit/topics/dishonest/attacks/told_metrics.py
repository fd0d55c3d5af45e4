"""A server that asks what classes a site's kept-back samples are of, by models that answer one class whatever they see.

The accuracy of such a model is that class's share, and it is told with the number of samples: their product is a count.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from bilateral.audit.views import View
from bilateral.protocols.site_reports import MetricsReport

ACCURACY = "site_accuracy"
_SURE = 8.0
"""The logit of the one answer; all others are 0."""


def answering(network: nn.Module, head: str, answer: int) -> nn.Module:
    """A copy that answers one class: all is zero but one bias of its head."""
    crafted = copy.deepcopy(network)
    bias = crafted.get_submodule(head).bias
    if not isinstance(bias, nn.Parameter):
        raise TypeError(f"{head} has no bias by which it could answer one class.")
    with torch.no_grad():
        for parameter in crafted.parameters():
            parameter.zero_()
        bias[answer] = _SURE
    return crafted


def read_share(view: View, site: str, round_index: int, guess: float) -> float:
    """The share, among a site's kept-back samples, of the class that the model of this round answers.

    `guess`: the share as far as the server knows without asking. It is taken where the site told nothing.
    """
    report = view.message(MetricsReport, round_index=round_index, sender=site)
    if report is None or ACCURACY not in report.names:
        return guess
    share = float(report.values[report.names.index(ACCURACY)])
    return round(share * report.num_samples) / report.num_samples
