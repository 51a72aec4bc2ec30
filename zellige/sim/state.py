"""What parameters and gradients take in a step: gathers, reductions and the optimizer, by sharding mode.

zero3 gathers every layer's bf16 parameters before its forward and again before its backward, and reduce-scatters its
fp32 gradients after it (as PyTorch's FSDP2 does); zero2 reduce-scatters gradients and gathers all parameters once they
are updated; ddp all-reduces gradients. Parameters outside the blocks are only seen by the optimizer.
"""

from __future__ import annotations

import math

import msgspec

from zellige.cluster import Cluster
from zellige.exchange_prices import Transfer
from zellige.memory import Sharding
from zellige.model import ModelSpec
from zellige.sim.algorithms import CollectiveTime, all_gather, all_reduce, reduce_scatter

PARAMETER_BYTES = 2
GRADIENT_BYTES = 4

OPTIMIZER_BYTES = 30
"""HBM traffic of AdamW a parameter: reads gradient, master, m and v (16 B in fp32), writes master, m, v and the bf16
parameter (14 B)."""


class StateTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a layer's gather and reduction, of the optimizer, and of the gather that follows it."""

    cluster: Cluster
    layer_parameters: int
    gather: CollectiveTime | None
    reduce: CollectiveTime
    optimizer_ns: int
    last_gather: CollectiveTime | None

    def transfers(self, time: CollectiveTime, is_gather: bool) -> list[Transfer]:
        """What a layer's collective sends from rank to rank, as its algorithm does."""
        num_bytes = self.layer_parameters * (PARAMETER_BYTES if is_gather else GRADIENT_BYTES)
        ranks, node = self.cluster.num_ranks, self.cluster.ranks_per_node
        if ranks == 1:
            return []
        inside = between = num_bytes * (ranks - 1) // ranks
        if time.algorithm == "hierarchical":
            inside, between = num_bytes * (node - 1) // node, num_bytes * (ranks // node - 1) // (ranks // node)
        hops = []
        if ranks > node:
            # Every rank of a node carries its part of what leaves it: NCCL makes as many rings as there are NICs.
            hops = [(rank, (rank + node) % ranks, between // node) for rank in range(ranks)]
        if node > 1:
            hops += [(rank, rank // node * node + (rank + 1) % node, inside) for rank in range(ranks)]
        return hops


def state_traffic(model: ModelSpec, cluster: Cluster, sharding: Sharding) -> StateTraffic:
    """The traffic of a model's state on a cluster."""
    layer, total, ranks = model.layer_parameters(), model.num_parameters(), cluster.num_ranks
    owned = total if sharding == "ddp" else -(-total // ranks)
    reduction = all_reduce if sharding == "ddp" else reduce_scatter
    return StateTraffic(
        cluster=cluster,
        layer_parameters=layer,
        gather=all_gather(cluster, layer * PARAMETER_BYTES) if sharding == "zero3" else None,
        reduce=reduction(cluster, layer * GRADIENT_BYTES),
        optimizer_ns=math.ceil(owned * OPTIMIZER_BYTES / cluster.device.memory.bandwidth_gb_per_s),
        last_gather=all_gather(cluster, total * PARAMETER_BYTES) if sharding == "zero2" else None,
    )
