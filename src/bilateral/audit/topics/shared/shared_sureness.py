"""What sizes of activations say about single answers, beyond their sum.

Negative control: the same attacker with the sum alone, to which it is entitled. Positive: a single answering party.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats
from torch import Tensor

from bilateral.audit.evidence import Evidence, Gate, with_controls
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.topics.shared.attacks.answer_sureness import SeenAnswer, guess_sureness, sureness
from bilateral.audit.topics.shared.shared_setting import Progress, Seen, SharedSetting, ask_again, in_place_words
from bilateral.protocols.share.circuit.plaintext import predict_in_batches

RANK_ERROR = Metric("error of an answer's rank in sureness", "low")


def sureness_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """Trials are the plan's queries; a value is the mean over the answering parties."""
    queries, repeats = setting.queries, setting.effort.repeats
    on_progress(0.0, "sizes of all queries")
    seen = ask_again(setting, setting.style, queries, setting.models, repeats, "sureness")
    on_progress(0.5, "sizes of the attacker's own networks")
    own = ask_again(setting, setting.style, queries, setting.shadows, repeats, "sureness of shadows")
    answers = {name: predict_in_batches(model, queries) for name, model in setting.models.items()}
    known = {name: predict_in_batches(model, queries) for name, model in setting.shadows.items()}

    def scores(*, with_sizes: bool, alone: bool) -> Scores:
        return _scores(answers, _guesses(known, own, answers, seen, with_sizes=with_sizes, alone=alone))

    is_sealed = not setting.style.is_judged
    whole = f"the sum of {len(answers)} and {'its own masks' if is_sealed else 'blinded sizes'}, {setting.style.name}"
    return [
        with_controls(
            "single answers" if is_sealed else 5,
            "querying party",
            "how sure each answer is, from sizes in its view"
            if is_sealed
            else "how sure each answer is, from blinded sizes",
            f"the sums, and {in_place_words(setting.style)}, of {repeats} times the same queries",
            Gate(RANK_ERROR, 0.15),
            target=(whole, scores(with_sizes=True, alone=False)),
            positive=("a single answering party", scores(with_sizes=True, alone=True)),
            negative=("the sum alone", scores(with_sizes=False, alone=False)),
            remark=""
            if is_sealed
            else "the sizes of ledger line 5 are apart for every answering party; a sum of the logits is not all",
        )
    ]


def _guesses(
    known: Mapping[str, Tensor],
    own: Sequence[Seen],
    answers: Mapping[str, Tensor],
    seen: Sequence[Seen],
    *,
    with_sizes: bool,
    alone: bool,
) -> dict[str, np.ndarray]:
    """By answering party; `alone`: as if it were the only one, so that the sum is its answer."""
    found = {}
    for name in answers:
        shadow, shown = (
            SeenAnswer([view[name] for view in views], logits[name] if alone else _sum(logits))
            for views, logits in ((own, known), (seen, answers))
        )
        found[name] = guess_sureness(shadow, known[name], shown, with_sizes=with_sizes)
    return found


def _sum(logits: Mapping[str, Tensor]) -> Tensor:
    first, *others = logits.values()
    return sum(others, start=first)


def _scores(answers: Mapping[str, Tensor], guesses: Mapping[str, np.ndarray]) -> Scores:
    errors = [_rank_errors(guesses[name], sureness(logits)) for name, logits in answers.items()]
    return Scores(RANK_ERROR, tuple(float(value) for value in np.mean(errors, axis=0)))


def _rank_errors(guess: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """By how large a part of all queries each is put too high or too low. A third by chance."""
    found: np.ndarray = np.abs(stats.rankdata(guess) - stats.rankdata(truth)) / len(truth)
    return found
