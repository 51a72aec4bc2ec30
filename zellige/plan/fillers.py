"""Filler packing: whole sequences, in descending price, to the rank with the most of its tighter slack left (Eq. 8)."""

from __future__ import annotations

from collections.abc import Sequence

from zellige.errors import NoRoomError
from zellige.placement import Placement, Problem
from zellige.shards import WHOLE
from zellige.units import count_of, format_bytes
from zellige.workload import Sequence as Clip


class RankLoads:
    """Mutable loads of the ranks while packing: time, kept bytes, and the largest live segment."""

    def __init__(self, num_ranks: int) -> None:
        self.time_ns = [0] * num_ranks
        self.kept = [0] * num_ranks
        self.live = [0] * num_ranks

    def add(self, ranks: Sequence[int], time_ns: int, kept: int, live: int) -> None:
        """Put a sequence's costs on its ranks."""
        for rank in ranks:
            self.time_ns[rank] += time_ns
            self.kept[rank] += kept
            self.live[rank] = max(self.live[rank], live)


def pack_fillers(problem: Problem, fillers: Sequence[Clip], loads: RankLoads) -> list[Placement]:
    """Place whole sequences; ``loads`` is updated. Raises :class:`NoRoomError` naming the sequence and the missing
    bytes.

    The score of a rank is the smaller of its remaining time and memory slack, each as a fraction of its budget; the
    time budget F is the mean whole work, which a rank may exceed (its slack is then negative).
    """
    num_ranks = problem.cluster.num_ranks
    room = problem.memory.room_bytes
    whole = {bucket.name: problem.whole(bucket) for bucket in problem.counts}
    budget = sum(whole[sequence.bucket.name].time_ns for sequence in problem.batch.sequences)
    placements = []
    for sequence in sorted(fillers, key=lambda sequence: -whole[sequence.bucket.name].time_ns):
        option = whole[sequence.bucket.name]
        best, chosen, most_room = None, -1, -room
        for rank in range(num_ranks):
            left = room - loads.kept[rank] - option.kept_bytes - max(loads.live[rank], option.live_bytes)
            most_room = max(most_room, left)
            if left < 0:
                continue
            slack = budget - num_ranks * (loads.time_ns[rank] + option.time_ns)
            score = min(slack * room, left * budget)
            if best is None or score > best:
                best, chosen = score, rank
        if chosen < 0:
            raise _no_room(problem, sequence, -most_room)
        loads.add((chosen,), option.time_ns, option.kept_bytes, option.live_bytes)
        placements.append(Placement(sequence=sequence.id, bucket=sequence.bucket.name, config=WHOLE, ranks=(chosen,)))
    return placements


def _no_room(problem: Problem, sequence: Clip, missing: int) -> NoRoomError:
    return NoRoomError(
        f"no rank has room left for {sequence.id}, which this policy does not split",
        where=f"{sequence.bucket.name}: {count_of(sequence.bucket.num_tokens, 'token')}, whole, under engine"
        f" {problem.engine}",
        details=(
            f"{format_bytes(missing)} missing on the emptiest of {count_of(problem.cluster.num_ranks, 'rank')}, behind"
            " those placed before",
        ),
        fix="fewer sequences a step, more ranks, or --policy zellige --engine group, which splits where room is short",
    )
