"""Layers that repeat: simulate until they do, and multiply.

A step without jitter obeys laws that do not change with time, and all that passes from one stage to the next are the
times at which ranks finish it and at which gathers and reductions begin and end. Once all of these advance by the same
amount over enough stages (one more than gathers run ahead), they will for ever; ranks that never meet may each have an
amount of their own. So a step of few layers is simulated, and a layer's forward and backward are repeated.
"""

from __future__ import annotations

import msgspec

from zellige.sim.machine import Machine
from zellige.sim.scripts import GATHER, Scripts

Advance = tuple[int, ...]
"""What a stage adds to a rank's time and to each of its metrics."""


class Repetition(msgspec.Struct, frozen=True):
    """``count`` more layers of the steady stages; what each stage of either kind adds, by rank."""

    count: int
    forward_stage: int
    backward_stage: int
    forward: tuple[Advance, ...]
    backward: tuple[Advance, ...]

    def shift(self, rank: int, num_forward: int, num_backward: int) -> int:
        """The time that repeated stages add."""
        return num_forward * self.forward[rank][0] + num_backward * self.backward[rank][0]

    def extend(self, rank: int, finished: list[int]) -> list[int]:
        """When a rank is done with every stage of the whole step, from those of the short one."""
        last_forward, last_backward = self.forward_stage, self.backward_stage
        more = range(1, self.count + 1)
        times = finished[: last_forward + 1]
        steady = times[-1]
        times += [steady + self.shift(rank, again, 0) for again in more]
        later = self.shift(rank, self.count, 0)
        times += [time + later for time in finished[last_forward + 1 : last_backward + 1]]
        steady = times[-1]
        times += [steady + self.shift(rank, 0, again) for again in more]
        later = self.shift(rank, self.count, self.count)
        return times + [time + later for time in finished[last_backward + 1 :]]


def layers_needed(prefetch: int) -> int:
    """Layers in which repetition shows, if it does: ranks with less work run ahead first, by as much as is gathered."""
    return 4 * prefetch + 6


def forward_repeats(machine: Machine, last: int, prefetch: int) -> bool:
    """Whether forward stages up to ``last``, with which all ranks are done, repeat; for a look ahead of time."""
    forward = _advance(machine, last, prefetch + 2)
    return (
        forward is not None
        and _agree(machine.scripts, forward)
        and _collectives_advance(machine, last, prefetch + 2, prefetch, forward)
    )


def find_repetition(machine: Machine, num_layers: int, prefetch: int) -> Repetition | None:
    """How to go on from a step of few layers to one of ``num_layers``; None where its layers do not repeat yet."""
    scripts = machine.scripts
    short, window = scripts.num_layers, prefetch + 2
    # Stages before the turn run like all others; the last have nothing left to gather, beside or after them.
    last = 2 * short - 2 - prefetch
    forward, backward = _advance(machine, short - 1, window), _advance(machine, last, window)
    if forward is None or backward is None or not _agree(scripts, forward) or not _agree(scripts, backward):
        return None
    if not (
        _collectives_advance(machine, short - 1, window, prefetch, forward)
        and _collectives_advance(machine, last, window, prefetch, backward)
    ):
        return None
    return Repetition(num_layers - short, short - 1, last, forward, backward)


def _advance(machine: Machine, last: int, window: int) -> tuple[Advance, ...] | None:
    """What each of the ``window`` stages up to ``last`` adds, by rank; None where they differ."""
    result = []
    for finished in machine.finished:
        steps = {
            tuple(after - before for before, after in zip(finished[stage - 1], finished[stage], strict=True))
            for stage in range(last - window + 1, last + 1)
        }
        if len(steps) > 1:
            return None
        result.append(steps.pop())
    return tuple(result)


def _agree(scripts: Scripts, advance: tuple[Advance, ...]) -> bool:
    """Whether ranks that meet advance alike."""
    return all(
        len({advance[rank][0] for rank in meeting.peers}) == 1
        for channel in scripts.channels
        for meeting in channel.meetings
    )


def _collectives_advance(machine: Machine, last: int, window: int, ahead: int, advance: tuple[Advance, ...]) -> bool:
    """Whether gathers and reductions of the stages up to ``last``, and the gathers ahead of it, advance as ranks do."""
    count = len(machine.scripts.channels)
    for number, channel in enumerate(machine.scripts.channels):
        if not channel.lane:
            continue
        for stage in range(last - window + 1, last + (ahead if channel.lane == GATHER else 0) + 1):
            before = machine.collectives.get((stage - 1) * count + number)
            after = machine.collectives.get(stage * count + number)
            if before is None or after is None:
                continue
            if any(late - early != advance[0][0] for early, late in zip(before, after, strict=True)):
                return False
    return True
