"""Every error a user can cause or meet, as one tree.

    BilateralError                what was expected, what came, what to do
    |-- ArgumentError             a function was called with another kind of thing than it takes
    |-- PlanError                 a plan or a command-line option does not make sense
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


class BilateralError(Exception):
    """Base of all errors of this package. `remedy` says what the user can do about it."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        if message.endswith("..") and not message.endswith("..."):  # of a sentence that ended with another error's text
            message = message[:-1]
        super().__init__(f"{message} {remedy}".strip())
        self.remedy = remedy


class ArgumentError(BilateralError, TypeError):
    """A function was called with another kind of thing than its signature says."""


class PlanError(BilateralError):
    """A plan or a command-line option does not make sense."""


class PlanNotAcceptedError(PlanError):
    """A party's operator has not agreed to this plan, or to code that it names. Whoever sent it may know that."""


class UnsoundPlanError(PlanError):
    """A combination of protections whose claim would not hold."""


class DataError(BilateralError):
    """Data are missing, malformed, or unfit for the plan."""


class MissingDataError(DataError):
    """A data file is not where it was looked for."""


class ModelError(BilateralError):
    """A model cannot be built, traced or protected."""


class UnsupportedLayerError(ModelError):
    """A layer or function of the traced model has no rule in the scale graph."""


class RecoveryError(ModelError):
    """What perturbed training recovers is not the gradient of plain training: the model does what its trace hides."""


class ProtocolError(BilateralError):
    """A message, or a value inside one, breaks the protocol."""


class NumericalRangeError(ProtocolError):
    """A value is NaN, infinite, or outside the range in which recovery is exact."""


class OutOfRangeError(NumericalRangeError):
    """A number of a sealed step left its range, as both its parties have found: nobody's fault, and no gradient."""


class MalformedMessageError(ProtocolError):
    """Bytes that are no message, or a message with a part missing or too much."""


class AuthenticationError(ProtocolError):
    """A key, signature or sealed share is not of whom it claims to be."""


class SealedShareError(AuthenticationError):
    """Shares that `dealer` sealed for another client do not open there, or are not those it committed to."""

    def __init__(self, message: str, *, dealer: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.dealer = dealer


class ThresholdError(ProtocolError):
    """Too few clients are left to unmask a sum. The round gives no sum, and the model is untouched.

    What was sent before stays known: who took part, sizes of refused rows, questions asked on the way.
    """


class QuestionLimitError(ProtocolError):
    """A client has asked a served model as many questions as it may."""


class LostSumError(ThresholdError):
    """The sum of a round cannot be unmasked. `culprit` is the client that broke the protocol, "" if nobody can say."""

    def __init__(self, message: str, *, culprit: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.culprit = culprit


class NotAuditableError(BilateralError):
    """A protection does not tell an audit the truth that figures are scored against."""


class CheckpointError(BilateralError):
    """A checkpoint or an exported model is missing, corrupt, or belongs to something else."""


class DirectoryInUseError(CheckpointError):
    """Another process writes to a run's directory."""


class DeploymentError(BilateralError):
    """Kits, processes or the FLARE server of a deployment are not as they should be."""


class SitesMissingError(DeploymentError):
    """Too few sites are there for a round, and waiting did not help. What was done so far is in the checkpoint."""
