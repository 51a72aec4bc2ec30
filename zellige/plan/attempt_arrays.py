"""All attempts at a draft on free rank sets as one array, for the compiled loops of
:mod:`zellige.plan.attempt_kernel`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, chain

import numpy as np

from zellige.plan.attempt_kernel import MAX_STEPS, TRIAL
from zellige.plan.attempt_places import BEST, FULL, AttemptPlaces, Setting
from zellige.plan.compiled import LARGEST, compiled, is_compiled
from zellige.plan.free_arrays import free_places
from zellige.plan.improve import change_arrays
from zellige.plan.packing import Split
from zellige.plan.search_kernel import NEVER
from zellige.plan.task import FREE, Draft, Task, Trials


def may_compile(task: Task) -> bool:
    """Whether compiled loops are wanted and no figure of a draft can be too large for them: no rung needs more than the
    room of a rank."""
    num_ranks, room = task.problem.cluster.num_ranks, task.problem.memory.room_bytes
    longest = max([task.rungs[name][-1].work for name in task.numbers])
    sequences = sum(task.numbers.values()) + 1
    return is_compiled() and 2 * num_ranks * sequences * max(longest, room, task.start) < LARGEST


def best_compiled(task: Task, trials: Trials, usual: int) -> tuple[Draft | None, bool]:
    """The best of the attempts (:func:`zellige.plan.attempts.free_draft`) in compiled loops."""
    arrays = AttemptArrays(task, trials, usual)
    longest = arrays.run()
    binds = bool(arrays.array[arrays.places.numbers + FULL])
    return (None if longest == NEVER else arrays.draft(longest)), binds


class AttemptArrays:
    """What compiled attempts read and change, for the sequences of one task."""

    def __init__(self, task: Task, trials: Trials, usual: int) -> None:
        cluster, whole = task.problem.cluster, task.whole
        self.task = task
        self.names = [*whole, *[name for name in task.numbers if name not in whole]]
        self.rungs = list(chain.from_iterable([task.rungs[name] for name in self.names]))
        cuts: list[dict[str, int]] = []
        given = self._buckets() + self._kinds()
        for anchors, floors in trials:
            if anchors not in cuts:
                cuts.append(anchors)
            given += [cuts.index(anchors), *floors]
        given += [anchors.get(name, 0) for anchors in cuts for name in self.names]
        depths = max([sum(anchors.values()) for anchors in cuts])
        sizes = (len(self.names), len(whole), len(self.rungs))
        self.setting = Setting(
            task.start, task.problem.memory.room_bytes, cluster.num_nodes, cluster.ranks_per_node, *sizes,
            len(trials), usual, MAX_STEPS,
        )  # fmt: skip
        self.places, size = _places(cluster.num_ranks, sizes, depths, len(trials), len(cuts))
        self.array = np.empty(size, dtype=np.int64)
        self.array[: len(given)] = given
        self._write_rungs()
        self.search_places, search_size = free_places(cluster.num_nodes, cluster.ranks_per_node, depths, sizes[2])
        self.search = np.empty(search_size, dtype=np.int64)
        self.counts, self.best = np.empty((2, len(whole), cluster.num_ranks), dtype=np.int64)

    def _write_rungs(self) -> None:
        """Write the figures of all rungs; a degree is at most a pod's ranks, so that it fits into a byte."""
        at, array = self.places, self.array
        _, time, degree, nodes, kept, live, options = zip(*self.rungs, strict=True)
        array[at.rung_time : at.rung_kept] = time
        array[at.rung_kept : at.rung_live] = kept
        array[at.rung_live : at.rung_degree] = live if any(live) else 0
        small = bytes([*degree, *nodes, *[option.config.k for option in options]])
        array[at.rung_degree : at.rung_work] = np.frombuffer(small, dtype=np.uint8)
        degrees = array[at.rung_degree : at.rung_nodes]
        np.multiply(array[at.rung_time : at.rung_kept], degrees, out=array[at.rung_work : at.front])

    def _buckets(self) -> list[int]:
        """By bucket how many sequences, the first rung and the one past the last; the buckets by decreasing work."""
        task, names = self.task, self.names
        last = list(accumulate([len(task.rungs[name]) for name in names]))
        order = sorted(range(len(names)), key=lambda bucket: (-task.rungs[names[bucket]][0].work, names[bucket]))
        return [*[task.numbers[name] for name in names], 0, *last[:-1], *last, *order]

    def _kinds(self) -> list[int]:
        """Of the buckets that fit whole the rung, and its time, kept and live bytes."""
        alone, first = [], 0
        for name, rung in self.task.whole.items():
            alone.append(first + self.task.rungs[name].index(rung))
            first += len(self.task.rungs[name])
        kinds = self.task.whole.values()
        return [*alone, *[k.time for k in kinds], *[k.kept for k in kinds], *[k.live for k in kinds]]

    def run(self) -> int:
        """The time of the slowest rank of the best draft (:func:`zellige.plan.attempt_kernel.try_all`)."""
        run: Callable[..., int] = compiled("zellige.plan.attempt_kernel", "try_all")
        changes = change_arrays(tuple([rung.time for rung in self.task.whole.values()]))
        at, search = self.places, self.search
        return int(run(self.array, self.counts, self.best, self.setting, at, search, self.search_places, changes))

    def draft(self, longest: int) -> Draft:
        """The best draft, whose slowest rank takes so long."""
        at, array = self.places, self.array
        number = int(array[at.numbers + BEST])
        firsts = array[at.best_first + 1 : at.best_first + number + 2].tolist()
        ranks = array[at.best_ranks : at.best_ranks + firsts[-1]].tolist()
        buckets = array[at.best_bucket + 1 : at.best_bucket + number + 1].tolist()
        rungs = array[at.best_rung + 1 : at.best_rung + number + 1].tolist()
        split = [
            Split(self.names[bucket], self.rungs[rung], tuple(ranks[first:stop]))
            for bucket, rung, first, stop in zip(buckets, rungs, firsts, firsts[1:], strict=False)
        ]
        whole = dict(zip(self.task.whole, self.best.tolist(), strict=True))
        return Draft(split, whole, longest, origin=FREE, lower=self.task.start)


@lru_cache(maxsize=1024)
def _places(ranks: int, given: tuple[int, int, int], depths: int, trials: int, cuts: int) -> tuple[AttemptPlaces, int]:
    """Where the figures stand, and how many there are, for so many buckets, kinds and rungs; what is given comes
    first."""
    buckets, kinds, rungs = given
    ways = depths + 2 * MAX_STEPS + 3
    sizes = dict.fromkeys(("number", "first", "last", "by_work"), buckets)
    sizes |= dict.fromkeys(("alone", "kind_time", "kind_kept", "kind_live"), kinds)
    figures = ("work", "time", "degree", "nodes", "kept", "live")
    sizes |= {"trial": TRIAL * trials, "anchors": cuts * buckets}
    given_figures = ("time", "kept", "live", "degree", "nodes", "rounds", "work")
    sizes |= dict.fromkeys([f"rung_{figure}" for figure in given_figures], rungs)
    sizes |= {"front": trials * rungs, "member": depths, "flat": rungs}
    sizes |= dict.fromkeys(("time", "kept", "live", "order", "chosen", "free", "poured"), ranks)
    sizes |= dict.fromkeys([f"table_{figure}" for figure in figures], rungs)
    sizes |= {"table_first": buckets, "table_last": buckets, "table_alone": kinds}
    sizes |= dict.fromkeys(("table_source", "slot", "tried"), rungs)
    sizes |= dict.fromkeys(("pool", "taken", "divided"), kinds)
    each = ("bucket", "rung", "first")
    sizes |= dict.fromkeys([*[f"way_{name}" for name in each], "way_listed"], ways) | {"way_ranks": ways * ranks}
    sizes |= dict.fromkeys([f"spare_{name}" for name in each], ways) | {"spare_ranks": ways * ranks}
    sizes |= dict.fromkeys([f"best_{name}" for name in each], ways) | {"best_ranks": ways * ranks, "numbers": 4}
    starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    return AttemptPlaces(**starts), sum(sizes.values())
