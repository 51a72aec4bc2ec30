"""Fidelities, noise, what-ifs, sensitivity and sweeps from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import MIXED, SETTING, Run, write
from test_tables import table_lines

FEW = ("--policy", "dp", "--policy", "static-coalesced", "--policy", "zellige-paper-coalesced")
EVENT = ("--fidelity", "event")
NOISY = (*EVENT, "--jitter", "0.02", "--replicas", "2")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    ("options", "rows", "titles"),
    [
        ((*EVENT, "--additivity"), 12, ("compute", "wait", "gath-", "slow-", "rest")),
        (NOISY, 9, ("95 %", "longer", "best")),
        (("--sensitivity",), 6, ("x0.5", "flips at")),
    ],
)
def test_tables_of_simulations_fit(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    options: tuple[str, ...],
    rows: int,
    titles: tuple[str, ...],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    write("mixed.jsonl", MIXED)
    end = run("compare", "mixed.jsonl", *SETTING, *FEW, *options)
    assert end.code == 0, end.err
    lines = table_lines(end.out)
    assert len(lines) >= rows, end.out
    assert max(map(len, lines)) <= 80
    assert "…" not in end.out
    assert all(title in end.out for title in titles), end.out


def test_the_answer_says_how_it_was_found(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    sums = run("compare", "mixed.jsonl", *SETTING, *FEW, "--json").json
    event = run("compare", "mixed.jsonl", *SETTING, *FEW, *NOISY, "--json").json
    assert (sums["fidelity"], sums["noise"], sums["sources"]) == ("additive", None, [])
    assert (event["fidelity"], event["replicas"], event["noise"]["jitter"]) == ("event", 2, 0.02)
    assert any("parameter gathers" in line for line in event["sources"])
    for row, there in zip(event["rows"], sums["rows"], strict=True):
        assert row["plan_ns"] == there["step_time_ns"] == there["plan_ns"]
        assert row["step_time_ns"] == pytest.approx(sum(row["causes"].values()), abs=1)
        interval = row["interval_ns"]
        assert interval["low"] <= interval["mean"] <= interval["high"]
    assert "simulated" in run("compare", "mixed.jsonl", *SETTING, *FEW, *EVENT).out


def test_simulate_has_the_same_options(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    assert run("plan", "mixed.jsonl", *SETTING, "-o", "plan.json").code == 0
    plain = run("simulate", "plan.json", "--json").json
    assert plain["schema"] == "zellige.simulation/1"
    noisy = run("simulate", "plan.json", "--jitter", "0.02", "--replicas", "3", "--seed", "5", "--json").json
    assert noisy["summary"]["replicas"] == len(noisy["step_times_ns"]) == 3
    assert noisy["report"]["step_time_ns"] == noisy["step_times_ns"][0]
    split = run("simulate", "plan.json", "--additivity", "--json").json["additivity"]
    assert split["simulated_ns"] == plain["step_time_ns"]
    text = run("simulate", "plan.json", "--jitter", "0.02", "--replicas", "3", "--additivity").out
    assert "3 replicas" in text
    assert "unexplained" in text


@pytest.mark.parametrize(
    ("options", "code", "hint"),
    [
        (("--jitter", "0.1"), 2, "event"),
        ((*EVENT, "--replicas", "3"), 2, "--jitter"),
        (("--set", "lnk.bandwidth=2x"), 2, "did you mean link.bandwidth?"),
        (("--set", "link.bandwidth"), 2, "known: nic.bandwidth"),
        (("--set", "link.bandwidth=2us"), 2, "GB/s"),
        (("--set", "link.bandwidth=0x"), 2, "above zero"),
        (("--set", "compute=1e400"), 2, "no cluster can have"),
        (("--set", "compute=2x", "--set", "compute=3x"), 2, "twice"),
        (("--set", "nic.bandwidth=2x"), 2, "one node"),
        (("--device", "h20"), 2, "h200"),
        (("--sensitivity", "--policy", "usp"), 2, "static-coalesced"),
        (("--sensitivity", "--out", "a.jsonl"), 2, "no use of --out"),
        (("--out", "no/such/folder.jsonl"), 4, "cannot write"),
    ],
)
def test_what_makes_no_sense_is_said(run: Run, options: tuple[str, ...], code: int, hint: str) -> None:
    write("mixed.jsonl", MIXED)
    policies = ("--policy", "dp") if "--policy" not in options else ()
    end = run("compare", "mixed.jsonl", *SETTING, *policies, *options)
    assert (end.code, end.out) == (code, "")
    assert hint in end.err


def test_a_what_if_is_marked_and_its_plan_refused_elsewhere(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    changed = ("--set", "link.bandwidth=2x", "--device", "h200")
    answer = run("compare", "mixed.jsonl", *SETTING, "--policy", "usp", *changed, "--json").json
    name = "a800x4[device=h200,link.bandwidth=2x]"
    assert (answer["cluster"], answer["prices"]) == (name, ["extrapolated"])
    there = run("compare", "mixed.jsonl", *SETTING, "--policy", "usp", "--json").json
    assert answer["rows"][0]["compute_ns"] < there["rows"][0]["compute_ns"]
    assert run("plan", "mixed.jsonl", *SETTING, *changed, "-o", "plan.json").code == 0
    for command in (("simulate",), ("check",), ("execute", "--attention-only"), ("simulate", "--device", "h200")):
        end = run(*command, "plan.json")
        assert end.code == 2
        assert name in end.err
        assert "--device h200 --set link.bandwidth=2x" in end.err
    assert run("check", "plan.json", *changed).code == 0
    again = ("--set", "link.bandwidth=2.0x", "--device", "h200")
    assert run("simulate", "plan.json", *again, "--json").json["cluster"] == name
    assert run("plan", "mixed.jsonl", *SETTING, "-o", "own.json").code == 0
    end = run("simulate", "own.json", *changed)
    assert (end.code, end.out) == (2, "")
    assert run("simulate", "own.json", "--device", "a800-80gb").code == 0, "the device that it has changes nothing"


def test_given_prices_are_for_the_cluster_as_it_is(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    assert run("prices", "mixed.jsonl", *SETTING, "-o", "prices.json").code == 0
    end = run("compare", "mixed.jsonl", *SETTING, "--policy", "dp", "--prices", "prices.json", "--set", "compute=2x")
    assert end.code == 2
    assert "a800x4[compute=2x]" in end.err


# --- sweeps

OF_GENERATED = ("compare", "gen:openvid", "--cluster", "a800x4", "--policy", "dp", "--policy", "usp")
SWEEP = (*OF_GENERATED, "--batches", "8")


def in_a_process(*arguments: str) -> subprocess.Popen[str]:
    code = "from zellige.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def test_a_killed_sweep_goes_on_to_the_same_bytes(run: Run) -> None:
    whole = run(*SWEEP, "--out", "whole.jsonl")
    assert whole.code == 0
    with in_a_process(*SWEEP, "--out", "killed.jsonl") as process:
        deadline = time.monotonic() + 120
        path = Path("killed.jsonl")
        while time.monotonic() < deadline and not (path.exists() and path.stat().st_size > 1500):
            assert process.poll() is None or path.stat().st_size > 1500
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    lines = Path("killed.jsonl").read_bytes()
    Path("killed.jsonl").write_bytes(lines[:-7])
    end = run(*SWEEP, "--out", "killed.jsonl")
    assert end.code == 0
    assert Path("killed.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert run(*SWEEP, "--out", "killed.jsonl", "--json").json["batches"] == 8, "and again, from the file alone"


def test_jobs_show_neither_in_the_lines_nor_in_the_answer(run: Run) -> None:
    answers = []
    for jobs in ("1", "2"):
        end = run(*SWEEP, "--jobs", jobs, "--out", f"{jobs}.jsonl", "--json")
        assert end.code == 0, end.err
        answers.append(json.loads(end.out))
        for row in answers[-1]["rows"]:
            assert row.pop("planning_ns") > 0
    assert Path("1.jsonl").read_bytes() == Path("2.jsonl").read_bytes()
    assert answers[0] == answers[1]
    assert len(Path("1.jsonl").read_text().splitlines()) == 1 + 8 * 2


def test_other_settings_and_smaller_sweeps_are_refused(run: Run) -> None:
    assert run(*SWEEP, "--out", "a.jsonl").code == 0
    before = Path("a.jsonl").read_bytes()
    eight = ("--batches", "8")
    for options, hint in (
        ((*eight, "--seed", "1"), "seed 0 there"),
        ((*eight, "--set", "compute=2x"), "a800x4[compute=2x]"),
        ((*eight, "--policy", "dp-kk"), "dp-kk here"),
        ((*eight, "--checkpoint", "none"), "other options"),
        ((*eight, "--reserve", "5%"), "other options"),
        (("--batches", "3"), "8 batches, and 3"),
    ):
        end = run(*OF_GENERATED, "--out", "a.jsonl", *options)
        assert (end.code, end.out) == (2, ""), options
        assert hint in end.err
    assert Path("a.jsonl").read_bytes() == before


def test_a_sweep_grows(run: Run) -> None:
    assert run(*OF_GENERATED, "--batches", "3", "--out", "a.jsonl").code == 0
    few = Path("a.jsonl").read_bytes()
    assert run(*SWEEP, "--out", "a.jsonl").code == 0
    assert Path("a.jsonl").read_bytes().startswith(few)


def test_files_of_many_batches_are_swept_too(run: Run) -> None:
    rows = [{"width": 256, "height": 256, "num_frames": 1, "count": 3 + n, "batch": f"s{n}"} for n in range(4)]
    write("many.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write("mixed.jsonl", MIXED)
    arguments = ("compare", "many.jsonl", "mixed.jsonl", *SETTING, "--policy", "dp", "--json")
    plain, swept = run(*arguments).json, run(*arguments, "--out", "a.jsonl").json
    assert plain["batches"] == swept["batches"] == 5
    assert plain["rows"][0]["step_time_ns"] == swept["rows"][0]["step_time_ns"]
    write("mixed.jsonl", MIXED + '{"width": 512, "height": 512, "num_frames": 1}\n')
    assert run(*arguments, "--out", "a.jsonl").code == 2, "the batches are not those of the file"


def test_results_with_impossible_figures_are_refused(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    arguments = ("compare", "mixed.jsonl", *SETTING, "--policy", "dp", "--out", "results.jsonl")
    assert run(*arguments).code == 0
    whole = Path("results.jsonl").read_text()
    for figure in ("step_time_ns", "num_tokens", "peak_memory_bytes"):
        Path("results.jsonl").write_text(whole.replace(f'"{figure}":', f'"{figure}":-1'))
        end = run(*arguments)
        assert end.code == 4
        assert "results.jsonl:2" in end.err


def test_a_policy_named_twice_counts_once(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    once = run("compare", "mixed.jsonl", *SETTING, "--policy", "dp", "--policy", "usp", "--json").json
    twice = run(
        "compare", "mixed.jsonl", *SETTING, "--policy", "dp", "--policy", "usp", "--policy", "dp", "--json"
    ).json
    assert twice["num_tokens"] == once["num_tokens"]
    assert [row["policy"] for row in twice["rows"]] == ["dp", "usp"]


def test_seeds_that_no_generator_takes_are_usage_errors(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    end = run("compare", "mixed.jsonl", *SETTING, "--fidelity", "event", "--jitter", "0.1", "--seed", "9" * 23)
    assert end.code == 2
