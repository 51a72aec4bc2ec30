"""Whether all ranks together have room for a batch, and into how many micro-steps it must be cut at least.

A sequence under an option of degree d keeps ``kept_bytes`` on d ranks until its backward, so the smallest
``d * kept_bytes`` of all sequences must fit into the room of all ranks, once for every micro-step.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from zellige.errors import NoRoomError
from zellige.placement import Option, Problem
from zellige.units import ceil_div, count_of, format_bytes
from zellige.workload import Bucket


class RoomNeed(NamedTuple):
    """Bytes that the batch keeps on all ranks at least, the room of all ranks, and the bucket that needs most of it."""

    needed_bytes: int
    room_bytes: int
    heaviest: Bucket

    @property
    def least_micro_steps(self) -> int:
        """No fewer micro-steps hold the batch, under any policy."""
        return max(1, ceil_div(self.needed_bytes, self.room_bytes))

    @property
    def proof(self) -> str:
        """Why no fewer will do."""
        return (
            f"the sequences keep at least {format_bytes(self.needed_bytes)} until backward,"
            f" however they are split; all ranks together have {format_bytes(self.room_bytes)}"
        )


def room_need(problem: Problem) -> RoomNeed:
    """What the batch keeps at least."""
    needs = {bucket: count * kept_on_all_ranks(problem, bucket) for bucket, count in problem.counts.items()}
    return RoomNeed(
        needed_bytes=sum(needs.values()),
        room_bytes=max(1, problem.cluster.num_ranks * problem.memory.room_bytes),
        heaviest=max(needs, key=lambda bucket: (needs[bucket], bucket)),
    )


def kept_on_all_ranks(problem: Problem, bucket: Bucket) -> int:
    """The fewest bytes that a sequence keeps, over all ranks that share it."""
    return _kept(_smallest(problem, bucket))


def require_room(problem: Problem, num_micro_steps: int) -> None:
    """Raise :class:`NoRoomError` where memory proves that so few micro-steps cannot hold the batch."""
    need = room_need(problem)
    if num_micro_steps >= need.least_micro_steps:
        return
    missing = need.needed_bytes - num_micro_steps * need.room_bytes
    steps = "one step" if num_micro_steps == 1 else f"{num_micro_steps} micro-steps"
    option, ranks = _smallest(problem, need.heaviest), problem.cluster.num_ranks
    name = next(sequence.id for sequence in problem.batch.sequences if sequence.bucket == need.heaviest)
    raise NoRoomError(
        f"{steps} cannot hold the batch under engine {problem.engine}, however it is split",
        where=f"{problem.batch.name}: {count_of(len(problem.batch.sequences), 'sequence')} on {ranks} x"
        f" {problem.cluster.device.name}",
        details=(
            f"{need.proof}: {format_bytes(missing)} missing",
            f"{need.heaviest.name} needs most: {count_of(problem.counts[need.heaviest], 'sequence')} ({name} ...), each"
            f" {format_bytes(_kept(option))} over its ranks (as {option.config})",
        ),
        fix=("" if num_micro_steps == 1 else f"at least {need.least_micro_steps} micro-steps, or ")
        + f"about {ceil_div(need.needed_bytes * ranks, num_micro_steps * need.room_bytes)} ranks"
        + _leaner_engine(problem, num_micro_steps),
    )


def _leaner_engine(problem: Problem, num_micro_steps: int) -> str:
    """A word on an engine under which memory does not rule out so many micro-steps."""
    if problem.engine != "coalesced":
        return ""
    leaner = room_need(dataclasses.replace(problem, engine="group"))
    return ", or --engine group, which keeps fewer bytes" if num_micro_steps >= leaner.least_micro_steps else ""


def without_plan(problem: Problem, message: str, fix: str) -> NoRoomError:
    """The error of a policy that found no plan: memory's proof that there is none, or its message with what is needed.

    The proof says how much is missing; where there is none, the batch would fit if memory could be spread at will.
    """
    try:
        require_room(problem, 1)
    except NoRoomError as proof:
        return proof
    return NoRoomError(message, details=(room_need(problem).proof,), fix=fix)


def _smallest(problem: Problem, bucket: Bucket) -> Option:
    """The option that keeps the fewest bytes over all of its ranks, of those that fit alone (of all, if none does)."""
    options = problem.options[bucket.name]
    return min([option for option in options if problem.fits_alone(option)] or options, key=_kept)


def _kept(option: Option) -> int:
    return option.config.degree * option.kept_bytes
