"""Every error a user can cause or meet, as one tree.

    BilateralError                what was expected, what came, what to do
    |-- ArgumentError             a function was called with another kind of thing than it takes
    |-- PlanError                 a plan or a command-line option does not make sense
    |   |-- PlanNotAcceptedError  a party's operator has not agreed to this plan, or to code that it names
    |   `-- UnsoundPlanError      a combination of protections whose claim would not hold
    |-- DataError                 data are missing, malformed, or unfit for the plan
    |   `-- MissingDataError      a file is not where it was looked for
    |-- ModelError                a model cannot be built or protected
    |   |-- UnsupportedLayerError a layer has no rule in the scale graph
    |   `-- RecoveryError         what perturbed training recovers is not the gradient of plain training
    |-- ProtocolError             a message, or a value inside one, breaks the protocol
    |   |-- NumericalRangeError   a value is NaN, infinite, or outside the range where recovery is exact
    |   |   `-- OutOfRangeError   a number of a sealed step left its range, as both its parties have found
    |   |-- MalformedMessageError bytes that are no message, or a message with a part missing or too much
    |   |-- AuthenticationError   a key, signature or sealed share is not of whom it claims to be
    |   |   `-- SealedShareError  what one client dealt to another does not open
    |   |-- QuestionLimitError    a client has asked a served model as many questions as it may
    |   `-- ThresholdError        too few clients are left to unmask a sum
    |       `-- LostSumError      enough are left, but what they sent does not unmask
    |-- NotAuditableError         a protection does not tell an audit the truth that figures are scored against
    |-- CheckpointError           a checkpoint or an export is missing, corrupt, or of another plan
    |   `-- DirectoryInUseError   another process writes to a run's directory
    `-- DeploymentError           kits, processes or the FLARE server of a deployment are not as they should be
        `-- SitesMissingError     too few sites are there for a round, and waiting did not help

The command line prints the message and exits with code 2; it never shows a traceback for these.
"""

from __future__ import annotations

from typing import ClassVar


class BilateralError(Exception):
    """Base of all errors of this package. `remedy` says what the user can do about it.

    `usual_remedy`: of a kind of errors, where the message has none of its own.
    """

    usual_remedy: ClassVar[str] = ""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        if message.endswith("..") and not message.endswith("..."):  # of a sentence that ended with another error's text
            message = message[:-1]
        super().__init__(f"{message} {remedy}".strip())
        self.remedy = remedy or self.usual_remedy

    def in_full(self) -> str:
        """What was expected, what came, and what to do: the message, with the usual remedy if it has none."""
        text = str(self)
        return text if self.remedy in text else f"{text} {self.remedy}"


class ArgumentError(BilateralError, TypeError):
    """A function was called with another kind of thing than its signature says."""

    usual_remedy = "help() of it, or the API reference, has what it takes."


class PlanError(BilateralError):
    """A plan or a command-line option does not make sense."""

    usual_remedy = (
        "Correct it in the plan or on the command line: `--help` and the reference of settings have what there is."
    )


class PlanNotAcceptedError(PlanError):
    """A party's operator has not agreed to this plan, or to code that it names. Whoever sent it may know that."""


class UnsoundPlanError(PlanError):
    """A combination of protections whose claim would not hold."""


class DataError(BilateralError):
    """Data are missing, malformed, or unfit for the plan."""

    usual_remedy = "Correct the data, or how the plan reads them (docs/how-to/own-data.md)."


class MissingDataError(DataError):
    """A data file is not where it was looked for."""


class ModelError(BilateralError):
    """A model cannot be built, traced or protected."""

    usual_remedy = "Correct the network; `bilateral inspect` says which protections take it, and why others do not."


class UnsupportedLayerError(ModelError):
    """A layer or function of the traced model has no rule in the scale graph."""

    usual_remedy = "`bilateral inspect` says which protections take this network."


class RecoveryError(ModelError):
    """What perturbed training recovers is not the gradient of plain training: the model does what its trace hides."""


class ProtocolError(BilateralError):
    """A message, or a value inside one, breaks the protocol."""

    usual_remedy = "It was not used. Both sides must run the same plan and version."


class NumericalRangeError(ProtocolError):
    """A value is NaN, infinite, or outside the range in which recovery is exact."""


class OutOfRangeError(NumericalRangeError):
    """A number of a sealed step left its range, as both its parties have found: nobody's fault, and no gradient."""


class MalformedMessageError(ProtocolError):
    """Bytes that are no message, or a message with a part missing or too much."""

    usual_remedy = "It was not used. Both sides must run the same version."


class AuthenticationError(ProtocolError):
    """A key, signature or sealed share is not of whom it claims to be."""

    usual_remedy = "Nothing was revealed. Compare identity keys by a way that the server does not control."


class SealedShareError(AuthenticationError):
    """Shares that `dealer` sealed for another client do not open there, or are not those it committed to."""

    usual_remedy = "The shares were not used; who dealt them is left out of the next round."

    def __init__(self, message: str, *, dealer: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.dealer = dealer


class ThresholdError(ProtocolError):
    """Too few clients are left to unmask a sum. The round gives no sum, and the model is untouched.

    What was sent before stays known: who took part, sizes of refused rows, questions asked on the way.
    """

    usual_remedy = "Nothing was learned of this round; try the next one when more clients are there."


class QuestionLimitError(ProtocolError):
    """A client has asked a served model as many questions as it may."""

    usual_remedy = "Agree on more with whoever runs `bilateral serve`."


class LostSumError(ThresholdError):
    """The sum of a round cannot be unmasked. `culprit` is the client that broke the protocol, "" if nobody can say."""

    usual_remedy = "The sum of this round is lost; go on with the next round."

    def __init__(self, message: str, *, culprit: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.culprit = culprit


class NotAuditableError(BilateralError):
    """A protection does not tell an audit the truth that figures are scored against."""

    usual_remedy = 'Leave it out (`bilateral audit --only`), or see "Be attacked" in docs/architecture.md.'


class CheckpointError(BilateralError):
    """A checkpoint or an exported model is missing, corrupt, or belongs to something else."""

    usual_remedy = "Name another file or directory, or start anew."


class DirectoryInUseError(CheckpointError):
    """Another process writes to a run's directory."""


class DeploymentError(BilateralError):
    """Kits, processes or the FLARE server of a deployment are not as they should be."""

    usual_remedy = "docs/how-to/deployment.md has every step, and where the logs are."


class SitesMissingError(DeploymentError):
    """Too few sites are there for a round, and waiting did not help. What was done so far is in the checkpoint."""
