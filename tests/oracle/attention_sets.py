"""Split attention of one sequence as explicit sets: tokens owned, products computed, rows moved.

Built from the definitions alone, by testing every token and head for membership; nothing here uses the closed formulas
of ``zellige.shards``, whose results the tests compare with the sizes of these sets.

* The rank list enumerates (i, ring, j): query block outermost, head block innermost.
* Tokens are dealt to positions in contiguous parts, part n starting at ``floor(tokens * n / positions)``; heads to the
  h head blocks likewise. With ``group = num_heads / num_kv_heads``, query head a reads K/V head ``a // group``.
* A worker multiplies the queries owned by positions that share its (i, ring) with every key, for its block of heads.
  Its round t takes the keys owned by positions whose ring coordinate is ``(ring + t) mod k``.
* A row moves when a product needs it and its token is owned elsewhere. A worker without products moves nothing.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Phase = Literal["forward", "backward"]
Row = tuple[int, int]
"""(token, head) of one tensor: ``head_dim`` elements. The head of K, V, dK and dV is a K/V head."""

Triple = tuple[int, int, int]
"""(query token, key token, query head): one product of attention."""


class Channel(NamedTuple):
    """What travels together: one tensor, from one position to another, for one round.

    Q, O, dO and dQ travel once, whatever the rounds, and are filed under round 0; dK and dV under that of their keys.
    """

    tensor: Literal["Q", "K", "V", "O", "dO", "dQ", "dK", "dV"]
    phase: Phase
    ring_round: int
    source: int
    destination: int


def part_of(item: int, items: int, parts: int) -> int:
    """Which of ``parts`` contiguous parts holds ``item``: the last one that does not start after it."""
    return max(part for part in range(parts) if items * part // parts <= item)


class AttentionSets:
    """The sets of one sequence: ``length`` tokens split q ways by queries, h ways by heads, k ways in ring rounds."""

    def __init__(self, length: int, num_heads: int, num_kv_heads: int, q: int, h: int, k: int) -> None:
        self.k = k
        self.positions = [(i, ring, j) for i in range(q) for ring in range(k) for j in range(h)]
        self.owner = [part_of(token, length, len(self.positions)) for token in range(length)]
        self.head_block = [part_of(head, num_heads, h) for head in range(num_heads)]
        self.kv_head = [head // (num_heads // num_kv_heads) for head in range(num_heads)]

    def owned(self, index: int) -> set[int]:
        """Tokens whose linear work position ``index`` does."""
        return {token for token, owner in enumerate(self.owner) if owner == index}

    def queries(self, index: int) -> set[int]:
        """Tokens whose queries position ``index`` computes: those of the owners that share its (i, ring)."""
        return {
            token for token, owner in enumerate(self.owner) if self.positions[owner][:2] == self.positions[index][:2]
        }

    def keys(self, index: int, ring_round: int) -> set[int]:
        """Tokens whose keys a round of position ``index`` takes."""
        wanted = (self.positions[index][1] + ring_round) % self.k
        return {token for token, owner in enumerate(self.owner) if self.positions[owner][1] == wanted}

    def heads(self, index: int) -> set[int]:
        """Query heads of position ``index``."""
        return {head for head, block in enumerate(self.head_block) if block == self.positions[index][2]}

    def triples(self, index: int, ring_round: int) -> set[Triple]:
        """Every product that position ``index`` computes in a round."""
        keys, heads = self.keys(index, ring_round), self.heads(index)
        return {(query, key, head) for query in self.queries(index) for key in keys for head in heads}

    def _by_other_owner(self, index: int, rows: set[Row]) -> dict[int, set[Row]]:
        """The rows that ``index`` does not own itself, by their owner."""
        found: dict[int, set[Row]] = {}
        for row in rows:
            owner = self.owner[row[0]]
            if owner != index:
                found.setdefault(owner, set()).add(row)
        return found

    def transfers(self) -> dict[Channel, set[Row]]:
        """Every row that travels in one layer, forward and backward; empty channels are left out."""
        moved: dict[Channel, set[Row]] = {}
        for worker in range(len(self.positions)):
            query_rows: set[Row] = set()
            for ring_round in range(self.k):
                triples = self.triples(worker, ring_round)
                query_rows |= {(query, head) for query, _, head in triples}
                key_rows = {(key, self.kv_head[head]) for _, key, head in triples}
                for owner, rows in self._by_other_owner(worker, key_rows).items():
                    moved[Channel("K", "forward", ring_round, owner, worker)] = rows
                    moved[Channel("V", "forward", ring_round, owner, worker)] = rows
                    if ring_round > 0:  # a ring drops the K and V of later rounds; those of the first are kept
                        moved[Channel("K", "backward", ring_round, owner, worker)] = rows
                        moved[Channel("V", "backward", ring_round, owner, worker)] = rows
                    moved[Channel("dK", "backward", ring_round, worker, owner)] = rows
                    moved[Channel("dV", "backward", ring_round, worker, owner)] = rows
            for owner, rows in self._by_other_owner(worker, query_rows).items():
                moved[Channel("Q", "forward", 0, owner, worker)] = rows
                moved[Channel("O", "forward", 0, worker, owner)] = rows
                moved[Channel("dO", "backward", 0, owner, worker)] = rows
                moved[Channel("dQ", "backward", 0, worker, owner)] = rows
        return moved

    def row_width(self, channel: Channel) -> int:
        """Bytes an element on the wire: 2 (bf16), but 4 (fp32) for K/V gradients of later ring rounds."""
        return 4 if channel.ring_round > 0 and channel.tensor in ("dK", "dV") else 2
