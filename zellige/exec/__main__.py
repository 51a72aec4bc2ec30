"""``torchrun -m zellige.exec PROGRAM``: attention of a program on ranks that torchrun (or any launcher) started.

PROGRAM is a file of schema ``zellige.program/1``. Rank 0 writes the measured trace and prints a summary; ranks meet
through the launcher's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from zellige.errors import PreflightError, ZelligeError
from zellige.exec.execute import AttentionRun, Execution, RankResult, collect, run_attention, summary
from zellige.exec.session import Session, connected, fingerprint, require_ranks
from zellige.files import decode_json, read_text, readable_json, write_text
from zellige.program import Program


def main() -> int:
    """Run this rank; returns its exit status."""
    parser = argparse.ArgumentParser(prog="zellige.exec", description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--dtype", choices=("fp64", "fp32", "bf16"), default="fp32")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--transport", choices=("all-to-all", "peer-to-peer"), default="all-to-all")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--verify", action="store_true", help="compare with unsharded attention in fp64")
    parser.add_argument("--trace", type=Path, help="where rank 0 writes the measured trace")
    options = parser.parse_args()
    try:
        done = run_rank(options)
    except ZelligeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if done is not None:
        if options.trace is not None:
            write_text(options.trace, readable_json(done.trace))
        print(summary(done))
    return 0


def run_rank(options: argparse.Namespace) -> Execution | None:
    """This rank's part; the whole execution on rank 0."""
    torch.set_num_threads(1)
    program = decode_json(read_text(options.program), Program, str(options.program))
    run = AttentionRun(
        program=program,
        dtype=options.dtype,
        seed=options.seed,
        layers=options.layers,
        backend=options.backend,
        transport=options.transport,
        verify=options.verify,
    )
    timeout = datetime.timedelta(seconds=options.timeout)
    store, rank, world = next(dist.rendezvous("env://", timeout=timeout))  # type: ignore[attr-defined]
    require_ranks(program, world)
    session = Session(rank, world, store, options.timeout)
    if program.num_ranks < world:
        raise PreflightError(
            f"the plan is for {program.num_ranks} ranks, and {world} were started",
            fix=f"torchrun --nproc-per-node {program.num_ranks}",
        )
    shown = fingerprint(program, dtype=run.dtype, backend=run.backend, transport=run.transport)
    with connected(session, run.backend, shown):
        answer = msgspec.json.encode(run_attention(session, run))
        return _exchange_answers(store, session, run, answer)


def _exchange_answers(store: Store, session: Session, run: AttentionRun, answer: bytes) -> Execution | None:
    """Answers go through the store, as data; all wait until rank 0 has read them."""
    store.set(f"answer/{session.rank}", answer.decode())
    if session.rank == 0:
        texts = [store.get(f"answer/{rank}") for rank in range(session.num_ranks)]
        done = collect(run, [msgspec.json.decode(text, type=RankResult) for text in texts])
        dist.barrier()
        return done
    dist.barrier()
    return None


if __name__ == "__main__":
    sys.exit(main())
