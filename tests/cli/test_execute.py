"""A plan trained from the command line: on processes of this machine, and on ranks that torchrun started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import SETTING, Run, write

from zellige.cli_execute import require_host_memory
from zellige.errors import PreflightError
from zellige.exec import __main__ as exec_main
from zellige.exec.metrics import read_metrics
from zellige.files import decode_json
from zellige.trace import Trace

pytestmark = pytest.mark.dist

CLIPS = """\
{"width": 832, "height": 480, "num_frames": 17, "fps": 16}
{"width": 512, "height": 512, "num_frames": 1, "count": 3}
"""
SMALL = ("--model-size", "tiny", "--shrink", "200")


def make_plan(run: Run) -> None:
    """plan.json, which splits sequences over pairs of four ranks."""
    write("mix.jsonl", CLIPS)
    done = run("plan", "mix.jsonl", *SETTING, "--policy", "static", "--checkpoint", "selective", "-o", "plan.json")
    assert done.code == 0, done.err


def test_a_plan_trains_and_goes_on(run: Run) -> None:
    make_plan(run)
    common = ("execute", "plan.json", *SMALL, "--out", "run", "--save-every", "2", "--learning-rate", "0.001")
    first = run(*common, "--steps", "2", "--memory", "--trace", "spans.json")
    assert first.code == 0, first.err
    assert "dit of wan2.1-t2v-1.3b, 2 layers of 192, ddp, fp32, checkpoint selective" in first.out
    spans = {event["name"] for event in json.loads(Path("spans.json").read_text())["traceEvents"]}
    assert {"recompute.relinear", "optimizer"} <= spans
    for ending in (".project", ".attend0", ".finish"):
        assert {name.split(".")[0] for name in spans if name.endswith(ending)} == {"forward", "backward"}
    answer = run(*common, "--steps", "3", "--resume", "--json").json
    assert answer["schema"] == "zellige.training/1"
    found = [(rank["rank"], rank["first_step"], len(rank["losses"])) for rank in answer["ranks"]]
    assert found == [(rank, 2, 1) for rank in range(4)]
    lines = read_metrics(Path("run") / "metrics.jsonl")
    assert [line.step for line in lines] == [0, 1, 2]
    assert lines[1].peak_memory_bytes is not None
    assert lines[2].loss == answer["ranks"][0]["losses"][0]


def test_one_step_has_one_loss_and_no_empty_column(run: Run) -> None:
    make_plan(run)
    out = run("execute", "plan.json", *SMALL, "--learning-rate", "0.001").out
    assert "peak memory" not in out, "it is measured on demand"
    (line,) = [line for line in out.splitlines() if line.startswith("loss ")]
    assert line.endswith(" at step 0")
    assert line.count("step") == 1


@pytest.mark.parametrize("more", [(), ("--attention-only",)])
def test_nccl_without_a_gpu_is_refused_before_ranks_start(
    run: Run, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    make_plan(run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    size = () if more else ("--model-size", "tiny")
    end = run("execute", "plan.json", "--shrink", "200", "--backend", "nccl", *size, *more)
    assert (end.code, end.out) == (6, "")
    assert "ranks:" not in end.err, "nothing was announced"
    assert "--backend gloo" in end.err


def test_a_run_that_cannot_go_on_is_refused_before_ranks_start(run: Run) -> None:
    make_plan(run)
    end = run("execute", "plan.json", *SMALL, "--resume", "--out", "nothing")
    assert (end.code, end.out) == (4, "")
    assert "ranks:" not in end.err
    assert "leave --resume out" in end.err


def test_options_that_do_not_go_together_are_refused(run: Run) -> None:
    done = run("execute", "plan.json", "--verify")
    assert (done.code, done.out) == (2, "")
    assert "--attention-only --verify" in done.err
    done = run("execute", "plan.json", "--resume")
    assert (done.code, done.out) == (2, "")
    assert "--out FOLDER" in done.err


@pytest.mark.slow
def test_a_plan_trains_under_torchrun(run: Run) -> None:
    make_plan(run)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"),
            *("--master-addr=127.0.0.1", "--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
            *("-m", "zellige.exec", "--plan", "plan.json", *SMALL, "--steps", "2", "--parallel", "fsdp"),
            *("--trace", "trace.json"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "fsdp, fp32, checkpoint selective" in done.stdout
    trace = decode_json(Path("trace.json").read_text(), Trace, "trace.json")
    assert trace.origin == "measured"
    assert {span.rank for span in trace.spans} == {0, 1, 2, 3}


@pytest.mark.parametrize("output", [("--trace", "no/such/trace.json"), ("--out", "mix.jsonl/run")])
def test_ranks_of_torchrun_refuse_outputs_without_a_place(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: tuple[str, str]
) -> None:
    """Before they meet: there is no store to meet at here."""
    make_plan(run)
    monkeypatch.setattr(sys, "argv", ["zellige.exec", "--plan", "plan.json", *output])
    assert exec_main.main() == 4
    assert f"error[ZL400] cannot {'write' if output[0] == '--trace' else 'make the folder'}" in capsys.readouterr().err


@pytest.mark.parametrize(("dtype", "each"), [("fp32", 16), ("bf16", 8)])
def test_more_state_than_memory_is_refused_beforehand(dtype: str, each: int) -> None:
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    require_host_memory(there // each - 1, dtype)
    with pytest.raises(PreflightError, match="of all ranks take") as caught:
        require_host_memory(there // each + each, dtype)
    assert "--model-size tiny" in caught.value.fix


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        (("--attention-only", "--steps", "1"), "--steps"),
        (("--attention-only", "--out", "run"), "--out"),
        (("--attention-only", "--fsdp"), "--fsdp"),
        (("--attention-only", "--model-size", "full"), "--model-size"),
        (("--verify",), "--verify"),
        (("--layers", "1"), "--layers"),
        (("--prices", "table.json"), "--prices"),
    ],
)
def test_options_that_would_be_ignored_are_refused(run: Run, options: tuple[str, ...], unused: str) -> None:
    """Also where they say what is the default anyway."""
    end = run("execute", "plan.json", *options)
    assert end.code == 2
    assert f"makes no use of {unused}" in end.err


@pytest.mark.parametrize(("name", "status"), [("pipe", 141), ("disk", 4)])
def test_ranks_end_quietly_where_nobody_reads_what_they_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, status: int
) -> None:
    """As every other command: through ``| head``, and on a full disk."""
    if name == "disk" and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    reader, writer = os.pipe()
    os.close(reader)
    descriptor = writer if name == "pipe" else os.open("/dev/full", os.O_WRONLY)

    def attend(_: object) -> int:
        print("1 layer in 2 ms")
        return 0

    monkeypatch.setattr(exec_main, "attend", attend)
    monkeypatch.setattr(sys, "argv", ["zellige.exec", "program.json"])
    with open(descriptor, "w") as broken, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", broken)
        try:
            ended: object = exec_main.main()
        except SystemExit as end:
            ended = end.code
        broken.flush()
    if name == "disk":
        os.close(writer)
    assert ended == status
    told = capsys.readouterr().err
    assert told.count("error[") == (name == "disk")
    assert "Traceback" not in told
