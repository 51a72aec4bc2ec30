"""The errors a user can meet: each has a code, an exit status, and says what, where, why, and a way out."""

from __future__ import annotations

from typing import ClassVar


class ZelligeError(Exception):
    """Base of every error that Zellige raises on purpose.

    ``message`` says what is wrong in one line, ``where`` names the file and line or the object, ``details`` are
    further lines with the figures, ``fix`` is a way out.
    """

    code: ClassVar[str] = "ZL900"
    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, *, where: str = "", details: tuple[str, ...] = (), fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.details = details
        self.fix = fix

    def __str__(self) -> str:
        lines = [f"error[{self.code}] {self.message}"]
        if self.where:
            lines.append(f"  {self.where}")
        lines += [f"  {line}" for line in self.details]
        if self.fix:
            lines.append(f"  try: {self.fix}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, str]:
        """The JSON form that scripts read from stderr."""
        return {
            "schema": "zellige.error/1",
            "code": self.code,
            "message": self.message,
            "where": self.where,
            "details": "\n".join(self.details),
            "fix": self.fix,
        }


class UsageError(ZelligeError):
    """Options that contradict each other, or a value that cannot be parsed."""

    code = "ZL100"
    exit_code = 2


class UnknownNameError(UsageError):
    """A model, cluster, workload or policy that is not in the catalogs."""

    code = "ZL101"


class ClipError(UsageError):
    """A clip typed on the command line that cannot be read."""

    code = "ZL102"


class ModelMismatchError(UsageError):
    """Two inputs that were made for different models, clusters, engines or modes."""

    code = "ZL103"


class InfeasibleError(ZelligeError):
    """No placement exists: says which sequence, how much is missing, and what would fit."""

    code = "ZL200"
    exit_code = 3


class StateTooLargeError(InfeasibleError):
    """Parameters, gradients and optimizer state alone exceed the memory of a device."""

    code = "ZL201"


class SequenceTooLargeError(InfeasibleError):
    """One sequence does not fit, however it is split."""

    code = "ZL202"


class IllegalSplitError(InfeasibleError):
    """A split that the model's heads or the cluster's size do not allow."""

    code = "ZL203"


class NoRoomError(InfeasibleError):
    """The planner found no rank with room left for a sequence."""

    code = "ZL204"


class MissingPriceError(InfeasibleError):
    """A placement that the price table has no row for."""

    code = "ZL206"


class BagSpecError(UsageError):
    """A KnapFormer bag specification that cannot work."""

    code = "ZL205"


class ProgramError(ZelligeError):
    """A program that contradicts itself: work, order or ownership that does not add up."""

    code = "ZL300"
    exit_code = 3


class CyclicWaitError(ProgramError):
    """Ranks that would wait for one another for ever."""

    code = "ZL301"


class ExchangeOrderError(ProgramError):
    """Ranks that issue exchanges in different orders or numbers."""

    code = "ZL302"


class ConservationError(ProgramError):
    """Tokens, heads, keys or rows that are lost, repeated, or not those of the row count."""

    code = "ZL303"


class ResidentMemoryError(ProgramError):
    """A rank that would hold more than it has room for."""

    code = "ZL304"


class StuckError(ProgramError):
    """A simulated step in which ranks wait for something that never comes."""

    code = "ZL310"


class UnequalGathersError(ProgramError):
    """Ranks of one shard group that enter different numbers of parameter gathers or gradient reductions."""

    code = "ZL311"


class DeadLinkError(ProgramError):
    """Bytes that have to cross a link without bandwidth."""

    code = "ZL312"


class OtherClusterError(ProgramError):
    """A program that was made for another cluster or model than the one that it is simulated on."""

    code = "ZL313"


class FileError(ZelligeError):
    """A file that cannot be opened: missing, a directory, no permission, not text."""

    code = "ZL400"
    exit_code = 4


class FormatError(FileError):
    """A file that is not the format it should be, or holds a value out of range."""

    code = "ZL401"


class SchemaVersionError(FileError):
    """A file written by another version of a schema, or of another kind."""

    code = "ZL402"


class MissingSizesError(FileError):
    """Rows of a clip list without width, height or num_frames."""

    code = "ZL403"


class DuplicateIdError(FileError):
    """Two rows of a clip list with one id."""

    code = "ZL404"


class EmptyBatchError(FileError):
    """A clip list without any clip."""

    code = "ZL405"


class AllDroppedError(ZelligeError):
    """A batch of which no clip is left after bucket assignment."""

    code = "ZL407"
    exit_code = 1


class InvalidPlanError(FileError):
    """A plan whose content contradicts itself, its batch, or its prices."""

    code = "ZL406"


class TimeLimitError(ZelligeError):
    """A solver ended at its limit without any plan."""

    code = "ZL500"
    exit_code = 5


class MissingExtraError(ZelligeError):
    """An optional package or hardware that the command needs is not there."""

    code = "ZL600"
    exit_code = 6


class KernelError(MissingExtraError):
    """An attention kernel that cannot do what a program asks of it."""

    code = "ZL610"


class TooFewRanksError(MissingExtraError):
    """A program for more ranks than there are."""

    code = "ZL611"


class PreflightError(MissingExtraError):
    """Ranks that do not hold the same plan, program or versions."""

    code = "ZL612"


class MissingRankError(MissingExtraError):
    """Ranks that never came to the start, or to an exchange, in time."""

    code = "ZL613"


class LostRankError(MissingExtraError):
    """A rank whose process ended while others still worked with it."""

    code = "ZL614"


class BusyEngineError(MissingExtraError):
    """An engine called again while a call of it still runs."""

    code = "ZL615"
    exit_code = 70


class WireBytesError(MissingExtraError):
    """Bytes sent or received that are not the program's."""

    code = "ZL616"
    exit_code = 70


class LostPlannerError(MissingExtraError):
    """A planning process that ended, or fell silent, while batches waited for their plans."""

    code = "ZL620"


class BadTimingError(ZelligeError):
    """A measured time that cannot be one: zero, negative, or no number."""

    code = "ZL630"
    exit_code = 6


class InternalError(ZelligeError):
    """A broken invariant inside Zellige: a bug to report."""

    code = "ZL900"
    exit_code = 70
