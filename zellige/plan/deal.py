"""What a plan owes to a batch's names and order: nothing but who of equal sequences goes where.

A policy is posed the batch by bucket (:func:`by_bucket`), so its plan depends on how many sequences of each bucket
there are, and not on how the batch mixes them. Sequences of one bucket are interchangeable: :func:`deal` hands the
places of a plan out to those of any batch with the same counts, in batch order.
"""

from __future__ import annotations

import msgspec

from zellige.errors import InternalError
from zellige.files import digest
from zellige.placement import Inputs, Placement, Plan, Problem, plan_digest


def by_bucket(problem: Problem) -> Problem:
    """The problem with its sequences in the order of its buckets; those of one bucket stay in batch order."""
    order = {bucket: position for position, bucket in enumerate(problem.batch.buckets)}
    sequences = tuple(sorted(problem.batch.sequences, key=lambda sequence: order[sequence.bucket]))
    if sequences == problem.batch.sequences:
        return problem
    return problem.with_sequences(sequences)


def deal(plan: Plan, problem: Problem) -> Plan:
    """The plan for a problem that differs from the plan's own in names and order alone.

    Every bucket's places, in the plan's order, go to the bucket's sequences, in batch order; all figures stay. Raises
    :class:`InternalError` where the counts differ.
    """
    places: dict[str, list[Placement]] = {}
    for placement in reversed(plan.placements):
        places.setdefault(placement.bucket, []).append(placement)
    dealt = []
    for sequence in problem.batch.sequences:
        left = places.get(sequence.bucket.name)
        if not left:
            raise InternalError(f"the plan has no place for {sequence.id}", where=sequence.bucket.name)
        dealt.append(msgspec.structs.replace(left.pop(), sequence=sequence.id))
    if any(places.values()):
        raise InternalError(f"the plan places more than the {len(dealt)} sequences of {problem.batch.name}")
    renamed = msgspec.structs.replace(
        plan,
        batch=problem.batch.name,
        placements=tuple(dealt),
        inputs=Inputs(batch=digest(problem.batch), prices=plan.inputs.prices),
    )
    return msgspec.structs.replace(renamed, digest=plan_digest(renamed))
