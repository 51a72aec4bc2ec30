"""What a layer keeps from forward to backward: counted, and as the memory model says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from oracle.training_reference import tiny_model

from zellige.exec.attention import Engine
from zellige.exec.dit import DitBlock
from zellige.exec.kernels import CpuFlash
from zellige.exec.layer import LayerRun
from zellige.exec.live_memory import LiveBytes
from zellige.exec.stream import rank_stream
from zellige.exec.trial import AloneTransport
from zellige.exec.wan import WanBlock, make_wan
from zellige.memory import Checkpoint, kept_bytes
from zellige.model import ModelSpec
from zellige.prices import attention_shape
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import parse_config

SHARD = 1024


def model() -> ModelSpec:
    """Two heads of 128, so that a log-sum-exp is as small beside a row as in a real model."""
    tiny = tiny_model()
    changes = {"hidden_dim": 256, "num_heads": 2, "num_kv_heads": 2, "head_dim": 128, "ffn_dim": 1024}
    return msgspec.structs.replace(tiny, geometry=msgspec.structs.replace(tiny.geometry, **changes))


def make_block(network: str) -> Any:
    """A block in bf16, with what modulates and normalises in fp32, as diffusers keeps it."""
    torch.manual_seed(0)
    made: Any = make_wan(model()) if network == "wan" else None
    block: Any = DitBlock(model()) if made is None else WanBlock(made.blocks[0])
    block.to(torch.bfloat16)
    for name, parameter in block.named_parameters():
        if name.endswith("table") or "norm2" in name:
            parameter.data = parameter.data.float()
    return block


def kept_by_a_layer(program: Program, block: Any) -> int:
    """The difference that a second layer makes to the bytes that are alive after forward, on rank 0."""
    hidden_dim = model().geometry.hidden_dim
    stream = rank_stream(program, 0, [2] * len(program.segments), torch.device("cpu"))
    angles = torch.ones(stream.num_tokens, model().geometry.head_dim // 2)
    transport = AloneTransport(program.head_dim, torch.bfloat16, torch.device("cpu"))
    engine = Engine(program, 0, {(0, 1): transport}, CpuFlash(), dtype=torch.bfloat16)
    run = LayerRun(engine, stream, angles, angles)
    hidden = torch.randn(stream.num_tokens, hidden_dim, dtype=torch.bfloat16).requires_grad_()
    modulation = torch.randn(len(stream.pieces), 6, hidden_dim).requires_grad_()
    text = torch.randn(stream.num_text_rows, hidden_dim, dtype=torch.bfloat16).requires_grad_()
    with LiveBytes() as counter:
        hidden = run.layer(block, 0, hidden, modulation, text)
        after_one = counter.live
        hidden = run.layer(block, 1, hidden, modulation, text)
        after_two = counter.live
        hidden.sum().backward()
    return after_two - after_one


@pytest.mark.parametrize("network", ["dit", "wan"])
@pytest.mark.parametrize("checkpoint", ["full", "selective", "none"])
@pytest.mark.parametrize("config", ["whole", "h2", "q2", "k2"])
def test_what_a_layer_keeps_is_what_the_memory_model_says(config: str, checkpoint: Checkpoint, network: str) -> None:
    """Within 3 %: the model leaves out log-sum-exps, and counts a normalised Q of cross-attention that only Wan has."""
    split = parse_config(config)
    length = SHARD * split.degree
    program = build_program(
        [Assignment("clip", length, split, tuple(range(split.degree)))],
        Heads(2, 2, 128),
        num_ranks=2,
        num_layers=2,
        checkpoint=checkpoint,
    )
    layers = model().geometry.num_layers
    wanted = kept_bytes(model(), attention_shape(model(), length), split, checkpoint) / layers
    found = kept_by_a_layer(program, make_block(network))
    print(f"{network} {config} {checkpoint}: {found / SHARD:.0f} bytes a token, {found / wanted - 1:+.2%}")
    assert found == pytest.approx(wanted, rel=0.03)
