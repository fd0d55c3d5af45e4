"""One method of gradient inversion against one run, under all conditions, with controls (see `gradient_inversion`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from bilateral.audit.evidence import NUM_PICTURES, Condition, Evidence, Gate, Picture, with_controls
from bilateral.audit.experiment import Context, has_line
from bilateral.audit.image_metrics import Ruler, condition, is_image
from bilateral.audit.threat import eavesdropper_view, server_view
from bilateral.audit.topics.inversion.attacks.labels import read_label
from bilateral.audit.topics.inversion.attacks.uploads import (
    best_explained,
    client_model,
    most_like,
    naive_gradient,
    own_gradient,
    sent_parameters,
    sum_gradient,
    true_model,
    upload_of,
)
from bilateral.audit.topics.inversion.inversion_methods import InversionTools, Method, Observed, gates_for
from bilateral.audit.topics.inversion.one_sample_rounds import (
    Rounds,
    Trial,
    colluding,
    observe,
    random_gradients,
    ruler_of,
    tools_of,
)
from bilateral.audit.topics.model.attacks.softmax_exchange import softmax_of_query
from bilateral.audit.views import AdversaryName, View
from bilateral.protocols.guarantee import Subject
from bilateral.protocols.messages import Upload

NUM_STAGES = 6


@dataclass(eq=False)
class Inversion:
    """A method, the plan's run and its undefended control. `tests`: what the rows on single uploads are about."""

    context: Context
    method: Method
    target: Rounds
    control: Rounds
    tests: Subject | int
    remark: str = ""
    progress: Callable[[float, str], None] = lambda _fraction, _note: None
    """Called with the fraction of this object's work that is done."""
    _stages_done: int = field(default=0, init=False)

    def evidence(self) -> list[Evidence]:
        """All rows. The positive control comes first: whoever asks may want to look at it before the rest."""
        found = [self.naive("curious server"), self.naive("eavesdropper")]
        if self._is_bare:
            found.append(self._bare())
        else:
            found.append(self._dealt_out(server_view(self.target.recording)))
            partners = colluding(self.target.recording)
            if partners:
                found.append(self._dealt_out(server_view(self.target.recording, partners)))
            if has_line(self.target.recording.guarantee, 8):
                found.append(self._dealt_out_by_queries())
        if has_line(self.target.recording.guarantee, 12):
            found.append(self._sum())
        first, *rest = found
        return [replace(first, pictures=self._pictures()), *rest]

    @cached_property
    def positive(self) -> Condition:
        return self._scored("FedSGD, the same samples", self.control.trials, self._control_guesses)

    @property
    def works(self) -> bool:
        """Whether the positive control passes its gates."""
        found = [(gate, self.positive.of(gate.metric)) for gate in self._gates]
        return all(scores is not None and gate.passed_by(scores) for gate, scores in found)

    @property
    def _gates(self) -> tuple[Gate, ...]:
        return gates_for(self._sample)

    @property
    def _sample(self) -> Tensor:
        return self.target.trials[0].sample

    @cached_property
    def _ruler(self) -> Ruler:
        """One for all conditions."""
        return ruler_of(self.target.recording, self._tools(self.target))

    @cached_property
    def _is_bare(self) -> bool:
        view, trial = server_view(self.target.recording), self.target.trials[0]
        return isinstance(upload_of(view, trial.round_index, trial.client), Upload)

    @cached_property
    def _control_guesses(self) -> list[Tensor]:
        observed = own_gradients(server_view(self.control.recording), self.control)
        return self._guesses("FedSGD", observed, self.control)

    @cached_property
    def _naive_observed(self) -> Observed:
        view = eavesdropper_view(self.target.recording)
        keys = [(trial.round_index, trial.client) for trial in self.target.trials]
        return observe(
            client_model(view.facts),
            keys,
            lambda index: sent_parameters(view, index),
            lambda index, client: naive_gradient(view, index, client),
        )

    @cached_property
    def _naive_guesses(self) -> list[Tensor]:
        return self._guesses("uploads as gradients", self._naive_observed, self.target)

    @cached_property
    def _naive_floor(self) -> Condition:
        tools = self._tools(self.target)
        guesses = self._guesses("random gradients", random_gradients(self._naive_observed, tools), self.target)
        return self._scored("random gradients", self.target.trials, guesses)

    def naive(self, adversary: AdversaryName = "curious server") -> Evidence:
        """Uses messages alone, so that the server's and the eavesdropper's figures are the same."""
        return self._row(
            self.tests,
            adversary,
            adaptive=False,
            seen="the model that was sent and the first term of each upload, read as a gradient",
            target=self._scored(self._plan_words, self.target.trials, self._naive_guesses),
            negative=self._naive_floor,
        )

    def _bare(self) -> Evidence:
        observed = own_gradients(server_view(self.target.recording), self.target)
        guesses = self._guesses("uploads with secrets", observed, self.target)
        return self._row(
            self.tests,
            "curious server",
            adaptive=True,
            seen="each upload by itself, with the round's secrets and the true model",
            target=self._scored(self._plan_words, self.target.trials, guesses),
            negative=self._bare_floor(observed),
        )

    def _bare_floor(self, observed: Observed) -> Condition:
        floor = self._guesses("random gradients", random_gradients(observed, self._tools(self.target)), self.target)
        return self._scored("random gradients", self.target.trials, floor)

    def _dealt_out(self, view: View) -> Evidence:
        candidates, model = self._candidates_of_sums(view), true_model(view.facts)

        def guess(trial: Trial) -> Tensor:
            gradient = own_gradient(view, trial.round_index, trial.client)
            assert gradient is not None, "a client of this round sent nothing"
            parameters = view.server_round(trial.round_index).parameters.float()
            label = -1 if trial.label < 0 else read_label(model, parameters, gradient.float())
            return best_explained(model, parameters, candidates[trial.round_index], gradient, label)

        partners = len(view.parties) - 1
        seen = "the round's sum with the secrets, and each upload without its self mask to deal out what the sum shows"
        seen += f"; {partners} clients account for their own part of it" if partners else ""
        return self._attribution(self.tests, view, seen, guess)

    def _dealt_out_by_queries(self) -> Evidence:
        """Lines 8 and 12 together: the sum shows samples, the queries of cross entropy show whose they are."""
        view = server_view(self.target.recording)
        candidates, model = self._candidates_of_sums(view), true_model(view.facts)

        def guess(trial: Trial) -> Tensor:
            seen = softmax_of_query(view, trial.round_index, trial.client)[0]
            those = candidates[trial.round_index]
            with torch.no_grad():
                answers = model.outputs(view.server_round(trial.round_index).parameters.float(), those).softmax(1)
            return those[int((answers.double() - seen).norm(dim=1).argmin())]

        seen = "the round's sum with the secrets, and each client's softmax query to deal out what the sum shows"
        return self._attribution(8, view, seen, guess)

    def _attribution(
        self, tests: Subject | int, view: View, seen: str, guess_of: Callable[[Trial], Tensor]
    ) -> Evidence:
        """Each guess against its client's sample, and against another honest participant's of the same round."""
        trials = [t for t in self.target.trials if t.client not in view.parties and t.honest_other(view.parties)]
        others = [other for trial in trials if (other := trial.honest_other(view.parties)) is not None]
        guesses = [guess_of(trial) for trial in trials]
        return self._row(
            tests,
            view.adversary,
            adaptive=True,
            seen=seen,
            target=self._scored(self._plan_words, trials, guesses),
            negative=self._scored("the same guess against another participant's sample", others, guesses),
        )

    def _sum(self) -> Evidence:
        """Every sample by its best candidate; the control is the sum of another round, so that no round is favoured."""
        rounds = self.target.round_indices
        following = dict(zip(rounds, rounds[1:] + rounds[:1], strict=True))
        candidates = self._candidates_of_sums(server_view(self.target.recording))
        ruler = self._ruler
        own = [ruler.score_best(candidates[t.round_index], t.sample) for t in self.target.trials]
        foreign = [ruler.score_best(candidates[following[t.round_index]], t.sample) for t in self.target.trials]
        return self._row(
            12,
            "curious server",
            adaptive=True,
            seen="the round's sum over one sample a client; every sample is scored by the best candidate",
            target=condition(self._plan_words, own),
            negative=condition("the sum of another round", foreign),
        )

    def _candidates_of_sums(self, view: View) -> dict[int, Tensor]:
        if view.parties not in self._sums:
            self._sums[view.parties] = self._invert_sums(view)
        return self._sums[view.parties]

    @cached_property
    def _sums(self) -> dict[tuple[str, ...], dict[int, Tensor]]:
        return {}

    def _invert_sums(self, view: View) -> dict[int, Tensor]:
        """By round, candidates for the samples of all honest participants. Sums over equally many are done together."""
        found = {index: sum_gradient(view, index) for index in self.target.round_indices}
        result: dict[int, Tensor] = {}
        for count in sorted({len(honest) for _, honest in found.values()}):
            indices = [index for index, (_, honest) in found.items() if len(honest) == count]
            keys = [(index, "") for index in indices]
            observed = observe(
                true_model(view.facts),
                keys,
                lambda index: view.server_round(index).parameters,
                lambda index, _client: found[index][0],
            )
            candidates = self._invert(f"sums over {count}", replace(observed, count=count), self.target)
            result.update(zip(indices, candidates, strict=True))
        return result

    def _invert(self, note: str, observed: Observed, rounds: Rounds) -> list[Tensor]:
        done, self._stages_done = self._stages_done, self._stages_done + 1
        tools = self._tools(rounds)
        tools = replace(tools, on_progress=lambda f: self.progress(min(1.0, (done + f) / NUM_STAGES), note))
        return self.method.invert(observed, tools)

    def _guesses(self, note: str, observed: Observed, rounds: Rounds) -> list[Tensor]:
        return [candidates[0] for candidates in self._invert(note, observed, rounds)]

    def _tools(self, rounds: Rounds) -> InversionTools:
        """The same starts in every condition: the stream is named by the method alone."""
        return tools_of(self.context, rounds.recording, self.method.name)

    def _scored(self, what: str, trials: Sequence[Trial], guesses: Sequence[Tensor]) -> Condition:
        pairs = zip(guesses, trials, strict=True)
        return condition(what, [self._ruler.score(guess, trial.sample) for guess, trial in pairs])

    @property
    def _plan_words(self) -> str:
        return self.target.recording.protection

    def _row(
        self,
        tests: Subject | int,
        adversary: AdversaryName,
        *,
        adaptive: bool,
        seen: str,
        target: Condition,
        negative: Condition,
    ) -> Evidence:
        return with_controls(
            tests,
            adversary,
            self.method.name,
            seen,
            self._gates,
            target=target,
            positive=self.positive,
            negative=negative,
            adaptive=adaptive,
            remark=self.remark,
        )

    def _pictures(self) -> tuple[Picture, ...]:
        """Target, FedSGD, this plan's uploads, and of its sums the best candidate (chosen by the truth, to be seen)."""
        if not is_image(self._sample):
            return ()
        bounds = self._tools(self.target).bounds
        columns: dict[str, list[Tensor]] = {"target": [trial.sample for trial in self.target.trials]}
        if all(torch.equal(a.sample, b.sample) for a, b in zip(self.target.trials, self.control.trials, strict=False)):
            columns["from FedSGD"] = self._control_guesses
        columns[f"from {self._plan_words}"] = self._naive_guesses
        if not self._is_bare:
            sums = self._candidates_of_sums(server_view(self.target.recording))
            columns["best in the sum"] = [most_like(sums[t.round_index], t.sample) for t in self.target.trials]
        rows = list(zip(*columns.values(), strict=False))[:NUM_PICTURES]
        shown = tuple(tuple(bounds.to_unit(image) for image in row) for row in rows)
        return (Picture(self.method.name, tuple(columns), shown),)


def own_gradients(view: View, rounds: Rounds) -> Observed:
    keys = [(trial.round_index, trial.client) for trial in rounds.trials]
    return observe(
        true_model(view.facts),
        keys,
        lambda index: view.server_round(index).parameters,
        lambda index, client: own_gradient(view, index, client),
    )
