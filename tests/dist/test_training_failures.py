"""Training runs whose ranks are killed: an error that names the rank, no process left, and a run that can go on.

``pytest --training 20`` kills twenty times, at random moments; without it once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import types
from pathlib import Path

import msgspec
import pytest
from oracle.training_reference import make_plan
from test_failures import is_running
from test_training import MIXED, MODEL, SPLIT, WHOLE, run_of

from zellige.errors import FileError, FormatError, PreflightError
from zellige.exec.launch import RanksFailedError, run_ranks
from zellige.exec.metrics import MetricsLog, StepMetrics, read_metrics
from zellige.exec.training import TrainingRun, execute_training, training_task
from zellige.exec.training_state import read_part

pytestmark = pytest.mark.dist

SOON_S = 15.0
RANKS = 2


class Killer:
    """Kills a rank of a run ``after`` so many seconds, and no sooner than ``steps`` steps are written."""

    def __init__(self, rank: int, after: float, metrics: Path, steps: int) -> None:
        self.pids: list[int] = []
        self.killed_at = 0.0
        self._rank, self._after, self._metrics, self._steps = rank, after, metrics, steps

    def watch(self, pids: list[int]) -> None:
        """Take note of the ranks, and start to wait."""
        self.pids = pids
        threading.Thread(target=self._kill, daemon=True).start()

    def _kill(self) -> None:
        while len(read_metrics(self._metrics)) < self._steps:
            time.sleep(0.05)
        time.sleep(self._after)
        self.killed_at = time.monotonic()
        os.kill(self.pids[self._rank], signal.SIGKILL)


def kill_once(run: TrainingRun, rng: random.Random, *, steps: int) -> float:
    """Run until a rank is killed; returns how long it took from there to the error."""
    folder, rank = Path(run.directory), rng.randrange(RANKS)
    killer = Killer(rank, rng.uniform(0, 2), folder / "metrics.jsonl", steps)
    going_on = msgspec.structs.replace(run, steps=100_000, resume=(folder / "latest.json").exists())
    with pytest.raises(RanksFailedError) as caught:
        execute_training(going_on, timeout_s=30, watch=killer.watch)
    took = time.monotonic() - killer.killed_at
    assert took < SOON_S
    assert not any(is_running(pid) for pid in killer.pids)
    killed = caught.value.reports[rank] if len(caught.value.reports) == RANKS else caught.value.reports[-1]
    assert f"the process of rank {rank} was killed by signal 9" in killed.text
    assert f"rank {rank}" in str(caught.value)
    return took


def test_a_killed_run_ends_soon_and_goes_on_bit_for_bit(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    kills = pytestconfig.getoption("--training")
    for parallel in ("ddp", "fsdp") if kills > 1 else ("fsdp",):
        kill_and_go_on(parallel, max(1, kills // 2), tmp_path / parallel)


def kill_and_go_on(parallel: str, kills: int, folder: Path) -> None:
    """Kill a run so often, let it end, and hold its curve against that of a run that nobody killed."""
    rng = random.Random(parallel)
    plans = make_plan(MODEL, SPLIT[2], RANKS), make_plan(MODEL, MIXED[2], RANKS, checkpoint="selective")
    run = run_of(plans, parallel=parallel, directory=str(folder / "killed"), save_every=2)
    times = [kill_once(run, rng, steps=3 if kills == 1 else rng.choice((0, 0, turn))) for turn in range(kills)]
    print(f"{parallel}: {kills} kills, from kill to error at most {max(times):.1f} s")
    done = len(read_metrics(folder / "killed" / "metrics.jsonl"))
    last = msgspec.structs.replace(run, steps=done + 2, resume=(folder / "killed" / "latest.json").exists())
    execute_training(last, timeout_s=60)
    whole = msgspec.structs.replace(last, directory=str(folder / "whole"), resume=False, save_every=0)
    execute_training(whole, timeout_s=60)
    curves = [
        [(line.step, line.loss, line.gradient_norm) for line in read_metrics(folder / name / "metrics.jsonl")]
        for name in ("killed", "whole")
    ]
    assert curves[0] == curves[1]
    assert [step for step, _, _ in curves[0]] == list(range(done + 2))


def test_a_checkpoint_of_another_run_is_refused_and_so_is_none_at_all(tmp_path: Path) -> None:
    run = run_of((make_plan(MODEL, WHOLE[1], 1),), directory=str(tmp_path), resume=True)
    with pytest.raises(FileError, match="no complete checkpoint"):
        execute_training(run, timeout_s=30)
    execute_training(msgspec.structs.replace(run, resume=False, save_every=1), timeout_s=30)
    with pytest.raises(RanksFailedError, match="of another run") as other:
        execute_training(msgspec.structs.replace(run, seed=1, steps=2), timeout_s=30)
    assert {report.code for report in other.value.reports} == {PreflightError.code}


def test_u24_ranks_that_hold_other_texts_are_an_error_before_the_first_collective() -> None:
    """FastVideo#250: text lengths that differ between ranks of one group hang. The message says what and who."""
    grids = {"film": (1, 4, 4)}
    payloads = [
        msgspec.json.encode(run_of((make_plan(MODEL, {"film": ("h2", (0, 1))}, RANKS, grids=grids, text=text),)))
        for text in ({"film": 247}, {"film": 256})
    ]
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(training_task, payloads, timeout_s=20)
    assert [(report.rank, report.code) for report in caught.value.reports] == [(0, "ZL612"), (1, "ZL612")]
    for report in caught.value.reports:
        assert "run: sha256:" in report.text
        assert "on rank 0" in report.text
        assert "on rank 1" in report.text


def test_an_error_of_one_rank_ends_all_and_is_shown(tmp_path: Path) -> None:
    """A folder that cannot be written is rank 0's error alone; the other misses it, and comes second."""
    (tmp_path / "file").write_text("")
    run = run_of((make_plan(MODEL, MIXED[2], RANKS),), directory=str(tmp_path / "file" / "run"), steps=50)
    start = time.monotonic()
    with pytest.raises(RanksFailedError) as caught:
        execute_training(run, timeout_s=30)
    assert time.monotonic() - start < 30
    assert caught.value.code == FileError.code
    assert "rank 0: error[ZL400] cannot write to" in str(caught.value)


def test_scalars_go_to_tensorboard_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path / "tensorboard")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None:
            """Nothing is held back."""

        close = flush

    board = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "tensorboard")
    log = MetricsLog(tmp_path, steps_done=0)
    log.write(
        StepMetrics(step=3, loss=1.5, gradient_norm=2, tokens=7, step_ns=1, exchanges=0, received_bytes=9, plan="p")
    )
    log.close()
    assert ("loss", 1.5, 3) in written
    assert ("received_bytes", 9, 3) in written


def test_metrics_of_steps_that_are_done_again_are_dropped_and_half_a_line_is_passed_over(tmp_path: Path) -> None:
    def metrics(step: int) -> StepMetrics:
        return StepMetrics(
            step=step, loss=1.5, gradient_norm=2.0, tokens=7, step_ns=1, exchanges=0, received_bytes=0, plan="p"
        )

    log = MetricsLog(tmp_path, steps_done=0)
    for step in range(5):
        log.write(metrics(step))
    path = tmp_path / "metrics.jsonl"
    assert [line.step for line in read_metrics(path)] == [0, 1, 2, 3, 4], "every line is flushed"
    log.close()
    path.write_text(path.read_text() + '{"schema":"zellige.metrics/1","st')
    log = MetricsLog(tmp_path, steps_done=3)
    log.write(metrics(3))
    log.close()
    assert [line.step for line in read_metrics(path)] == [0, 1, 2, 3]


def test_a_checkpoint_that_is_cut_off_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "step0000001"
    folder.mkdir()
    part = folder / "rank0.pt"
    for content in (b"PK\x03\x04cut", b"", b"no archive"):
        part.write_bytes(content)
        with pytest.raises(FormatError, match="damaged") as caught:
            read_part(part)
        assert caught.value.where == str(part)
