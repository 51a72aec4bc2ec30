"""``torchrun -m zellige.exec``: a plan's training steps, or a program's attention, on ranks that are there already.

``--plan FILE`` trains a plan (schema ``zellige.plan/1``); a positional FILE (``zellige.program/1``) runs its attention.
Rank 0 writes the measured trace and prints a summary; ranks meet through the launcher's environment (RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT, and LOCAL_RANK for the GPU). The folder of ``--out`` must be one that all ranks see.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from zellige.catalog import load_model
from zellige.errors import PreflightError, ZelligeError
from zellige.exec.dit import resized
from zellige.exec.execute import AttentionRun, Execution, RankResult, collect, run_attention, summary
from zellige.exec.plans import read_plan, training_plans
from zellige.exec.session import Session, connected, fingerprint, require_ranks
from zellige.exec.training import (
    RankTraining,
    TrainingRun,
    collect_training,
    run_training,
    training_lines,
    training_session,
)
from zellige.files import (
    decode_json,
    read_text,
    readable_json,
    refuse_dash,
    require_folder_place,
    require_place,
    write_text,
)
from zellige.program import Program
from zellige.standard_streams import guarded_streams
from zellige.units import count_of


def main() -> int:
    """Run this rank; returns its exit status. A reader of its output that has gone ends it quietly."""
    with guarded_streams():
        return _run()


def _run() -> int:
    parser = argparse.ArgumentParser(prog="zellige.exec", description=__doc__)
    parser.add_argument("program", type=Path, nargs="?", help="a program, to run its attention")
    parser.add_argument("--plan", help="a plan, to train it")
    parser.add_argument("--dtype", choices=("fp64", "fp32", "bf16"), default="fp32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--transport", choices=("all-to-all", "peer-to-peer"), default="all-to-all")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="of one exchange")
    parser.add_argument("--trace", type=Path, help="where rank 0 writes the measured trace")
    parser.add_argument("--layers", type=int, default=1, help="of a program")
    parser.add_argument("--verify", action="store_true", help="compare attention with unsharded fp64")
    _add_training_options(parser)
    options = parser.parse_args()
    if (options.plan is None) == (options.program is None):
        parser.error("give a program, or --plan and a plan")
    try:
        try:
            if os.environ.get("RANK", "0") == "0":
                _require_places(options)
            return attend(options) if options.plan is None else train(options)
        finally:
            sys.stdout.flush()
    except ZelligeError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--network", choices=("dit", "wan"), default="dit")
    parser.add_argument("--model", help="a catalog file of one's own; default: the plan's model")
    parser.add_argument("--model-size", choices=("full", "small", "tiny"), default="full")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), default="fsdp")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-steps a step")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--shrink", type=int, default=1, help="divide all lengths")
    parser.add_argument("--checkpoint", choices=("full", "selective", "none"), help="default: the plan's")
    parser.add_argument("--out", default="", help="folder of metrics and checkpoints")
    parser.add_argument("--save-every", type=int, default=0, help="steps between checkpoints; 0: none")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")


def _require_places(options: argparse.Namespace) -> None:
    """Raise :class:`ZelligeError` where what this rank writes in the end has no place."""
    folder = Path(options.out) if options.out else None
    for option, path in (("--out", folder), ("--trace", options.trace)):
        if path is not None:
            refuse_dash(path, option)
    if folder is not None:
        require_folder_place(folder)
    if options.trace is not None and options.trace.parent != folder:
        require_place(options.trace)


def attend(options: argparse.Namespace) -> int:
    """Attention of a program."""
    done = run_rank(options)
    if done is not None:
        if options.trace is not None:
            write_text(options.trace, readable_json(done.trace))
        print(summary(done))
    return 0


def train(options: argparse.Namespace) -> int:
    """Training steps of a plan."""
    plan = read_plan(options.plan)
    model = resized(load_model(options.model or plan.model), options.model_size)
    parts = training_plans(plan, model, shrink=options.shrink, checkpoint=options.checkpoint, where=options.plan)
    run = TrainingRun(
        plans=parts,
        model=model,
        network=options.network,
        parallel=options.parallel,
        dtype=options.dtype,
        steps=options.steps,
        accumulate=options.accumulate * len(parts),
        learning_rate=options.learning_rate,
        seed=options.seed,
        backend=options.backend,
        transport=options.transport,
        directory=options.out,
        save_every=options.save_every,
        resume=options.resume,
        trace=options.trace is not None,
    )
    torch.set_num_threads(1)
    session = meet(parts[0].program, options.timeout)
    with training_session(session, run):
        answer = msgspec.json.encode(run_training(session, run)).decode()
        texts = gather_answers(session, answer)
        if texts:
            ranks = [msgspec.json.decode(text, type=RankTraining) for text in texts]
            done = collect_training(run, ranks)
            if options.trace is not None and done.trace is not None:
                write_text(options.trace, readable_json(done.trace))
            print("\n".join(training_lines(run, done)))
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
    session = meet(program, options.timeout)
    shown = fingerprint(program, dtype=run.dtype, backend=run.backend, transport=run.transport)
    with connected(session, run.backend, shown):
        texts = gather_answers(session, msgspec.json.encode(run_attention(session, run)).decode())
        return collect(run, [msgspec.json.decode(text, type=RankResult) for text in texts]) if texts else None


def meet(program: Program, timeout_s: float) -> Session:
    """This rank's place among those that the launcher started; exactly as many as the program is for."""
    timeout = datetime.timedelta(seconds=timeout_s)
    store, rank, world = next(dist.rendezvous("env://", timeout=timeout))  # type: ignore[attr-defined]
    require_ranks(program, world)
    if program.num_ranks < world:
        raise PreflightError(
            f"the plan is for {count_of(program.num_ranks, 'rank')}, and {world} were started",
            fix=f"torchrun --nproc-per-node {program.num_ranks}",
        )
    return Session(rank, world, store, timeout_s)


def gather_answers(session: Session, answer: str) -> list[str]:
    """All answers on rank 0, nothing elsewhere: through the store, as data; all wait until rank 0 has read them."""
    session.store.set(f"answer/{session.rank}", answer)
    texts = []
    if session.rank == 0:
        texts = [session.store.get(f"answer/{rank}").decode() for rank in range(session.num_ranks)]
    dist.barrier()
    return texts


if __name__ == "__main__":
    sys.exit(main())
