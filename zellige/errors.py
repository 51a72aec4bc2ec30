"""The errors a user can meet: each has a code, an exit status, and says what, where, why, and a way out."""

from __future__ import annotations

from typing import ClassVar


class ZelligeError(Exception):
    """Base of every error that Zellige raises on purpose.

    ``message`` says what is wrong in one line, ``where`` names the file and line or the object, ``details`` are
    further lines with the figures, ``fix`` is a way out: the class's own ``way_out`` where none is given.
    """

    code: ClassVar[str] = "ZL900"
    exit_code: ClassVar[int] = 70
    way_out: ClassVar[str] = "this is a bug in Zellige: please report the command and its input"

    def __init__(self, message: str, *, where: str = "", details: tuple[str, ...] = (), fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.details = details
        self.fix = fix or self.way_out

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
    way_out = "zellige-sim COMMAND --help lists the options and what they take"


class UnknownNameError(UsageError):
    """A model, cluster, workload or policy that is not in the catalogs."""

    code = "ZL101"
    way_out = "zellige-sim catalog list shows every name that is bundled"


class ClipError(UsageError):
    """A clip typed on the command line that cannot be read."""

    code = "ZL102"
    way_out = "a clip as 1280x720x161, or 1280x720 with --seconds"


class ModelMismatchError(UsageError):
    """Two inputs that were made for different models, clusters, engines or modes."""

    code = "ZL103"
    way_out = "inputs for one model, cluster, device and mode"


class InfeasibleError(ZelligeError):
    """No placement exists: says which sequence, how much is missing, and what would fit."""

    code = "ZL200"
    exit_code = 3
    way_out = "more ranks, shorter clips, or fewer sequences a step"


class StateTooLargeError(InfeasibleError):
    """Parameters, gradients and optimizer state alone exceed the memory of a device."""

    code = "ZL201"
    way_out = "--sharding zero3, or more ranks"


class SequenceTooLargeError(InfeasibleError):
    """One sequence does not fit, however it is split."""

    code = "ZL202"
    way_out = "more ranks, or a shorter clip"


class IllegalSplitError(InfeasibleError):
    """A split that the model's heads or the cluster's size do not allow."""

    code = "ZL203"
    way_out = "a split whose h divides the heads, on no more ranks than there are; inspect CLIP lists them"


class NoRoomError(InfeasibleError):
    """The planner found no rank with room left for a sequence."""

    code = "ZL204"
    way_out = "more ranks, or fewer sequences a step"


class MissingPriceError(InfeasibleError):
    """A placement that the price table has no row for."""

    code = "ZL206"
    way_out = "a price table that holds it, or analytic prices (leave --prices out)"


class BagSpecError(UsageError):
    """A KnapFormer bag specification that cannot work."""

    code = "ZL205"
    way_out = "bags as g2n1+g6n1 that fill the ranks, or leave --knapformer out"


class ProgramError(ZelligeError):
    """A program that contradicts itself: work, order or ownership that does not add up."""

    code = "ZL300"
    exit_code = 3
    way_out = "zellige-sim check PLAN says what else is wrong with it; or plan the batch again"


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
    way_out = "zellige-sim check PLAN; if that finds nothing, please report the plan"


class UnequalGathersError(ProgramError):
    """Ranks of one shard group that enter different numbers of parameter gathers or gradient reductions."""

    code = "ZL311"


class DeadLinkError(ProgramError):
    """Bytes that have to cross a link without bandwidth."""

    code = "ZL312"
    way_out = "a cluster whose links have bandwidth"


class OtherClusterError(ProgramError):
    """A program that was made for another cluster or model than the one that it is simulated on."""

    code = "ZL313"
    way_out = "lower the plan again, for this cluster and model"


class FileError(ZelligeError):
    """A file that cannot be opened: missing, a directory, no permission, not text."""

    code = "ZL400"
    exit_code = 4
    way_out = "a path that exists, and that you may read and write"


class FormatError(FileError):
    """A file that is not the format it should be, or holds a value out of range."""

    code = "ZL401"
    way_out = "correct the file at that place, or write it anew with the command that made it"


class SchemaVersionError(FileError):
    """A file written by another version of a schema, or of another kind."""

    code = "ZL402"
    way_out = "a file of the kind that the command takes; zellige-sim check FILE says what a file is"


class MissingSizesError(FileError):
    """Rows of a clip list without width, height or num_frames."""

    code = "ZL403"
    way_out = "fill in width, height and num_frames of these rows"


class DuplicateIdError(FileError):
    """Two rows of a clip list with one id."""

    code = "ZL404"
    way_out = "another id in one of the rows, or no id column: rows are then numbered"


class EmptyBatchError(FileError):
    """A clip list without any clip."""

    code = "ZL405"
    way_out = "a clip list with at least one row"


class AllDroppedError(ZelligeError):
    """A batch of which no clip is left after bucket assignment."""

    code = "ZL407"
    exit_code = 1
    way_out = "zellige-sim check FILE says which bucket would keep which clip"


class InvalidPlanError(FileError):
    """A plan whose content contradicts itself, its batch, or its prices."""

    code = "ZL406"
    way_out = "plan the batch again"


class TimeLimitError(ZelligeError):
    """A solver ended at its limit without any plan."""

    code = "ZL500"
    exit_code = 5
    way_out = "a smaller batch, or a policy that does not search (--policy zellige)"


class MissingExtraError(ZelligeError):
    """An optional package or hardware that the command needs is not there."""

    code = "ZL600"
    exit_code = 6
    way_out = "pip install -e '.[exec,sweep,parquet]' in the checkout, or leave out what needs it"


class KernelError(MissingExtraError):
    """An attention kernel that cannot do what a program asks of it."""

    code = "ZL610"
    way_out = "another --dtype, or the gloo backend on CPU ranks"


class TooFewRanksError(MissingExtraError):
    """A program for more ranks than there are."""

    code = "ZL611"
    way_out = "as many ranks as the plan is for, or a plan for fewer"


class PreflightError(MissingExtraError):
    """Ranks that do not hold the same plan, program or versions."""

    code = "ZL612"
    way_out = "the same plan, options and versions on every rank"


class MissingRankError(MissingExtraError):
    """Ranks that never came to the start, or to an exchange, in time."""

    code = "ZL613"
    way_out = "start every rank, or a longer --timeout"


class LostRankError(MissingExtraError):
    """A rank whose process ended while others still worked with it."""

    code = "ZL614"
    way_out = "the report of the rank that ended first says why; fewer ranks or a larger --shrink take less memory"


class BusyEngineError(MissingExtraError):
    """An engine called again while a call of it still runs."""

    code = "ZL615"
    exit_code = 70
    way_out = "one call at a time; this is a bug where zellige-sim made both"


class WireBytesError(MissingExtraError):
    """Bytes sent or received that are not the program's."""

    code = "ZL616"
    exit_code = 70
    way_out = "this is a bug in Zellige: please report the plan and the command"


class LostPlannerError(MissingExtraError):
    """A planning process that ended, or fell silent, while batches waited for their plans."""

    code = "ZL620"
    way_out = "plan again: the lines that were written stay; or a smaller batch, if memory ran out"


class BadTimingError(ZelligeError):
    """A measured time that cannot be one: zero, negative, or no number."""

    code = "ZL630"
    exit_code = 6
    way_out = "measure again on a quiet machine; a journal beside the table can be deleted"


class InternalError(ZelligeError):
    """A broken invariant inside Zellige: a bug to report."""

    code = "ZL900"
    exit_code = 70
