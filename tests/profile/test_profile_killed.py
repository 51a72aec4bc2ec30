"""A profile that is killed with signal 9, at any moment, goes on where it was and loses one unit at most."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from oracle.made_measurements import HOST, made_result, setting

from zellige.errors import FileError, FormatError
from zellige.prices import read_table
from zellige.profile.grid import Probe, probes
from zellige.profile.journal import Journal, JournalHeader, journal_path
from zellige.shards import WHOLE

TESTS = Path(__file__).resolve().parent.parent

CHILD = """
import sys, time
from pathlib import Path
from oracle.made_measurements import HOST, made_result, setting
from zellige.files import canonical_json, write_text
from zellige.profile.profiler import Budget, profile

out, log = Path(sys.argv[1]), open(sys.argv[2], "a")
place = setting()

def measure(probe):
    time.sleep(0.004)
    log.write(probe.key + "\\n")
    log.flush()
    return made_result(place, probe)

table, done = profile(
    place, out, host=HOST, device="cpu", dtype="fp32", measure=measure, links=None, budget=Budget(seconds=1e9)
)
write_text(out, canonical_json(table).decode())
"""

BRIEFLY = """
from zellige.cli import main
from zellige.profile import compute

compute.BOX_NS = 20_000_000
main()
"""
"""The command line, with fewer steps of each probe."""


def started(command: list[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def killed_somewhere(process: subprocess.Popen[bytes], journal: Path, wait_s: float, lines: int) -> bool:
    """Whether a process was killed, so long after its journal has more than some lines; it may have ended before."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and whole_lines(journal) <= lines:
        time.sleep(0.002)
    time.sleep(wait_s)
    alive = process.poll() is None
    process.kill()
    process.communicate()
    return alive and process.returncode == -signal.SIGKILL


def whole_lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def ended_well(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


def test_killed_at_random_points_the_table_is_that_of_one_run(tmp_path: Path) -> None:
    draw = random.Random(7)
    out, log, place = tmp_path / "t.json", tmp_path / "log", setting()
    command = [sys.executable, "-c", CHILD, str(out), str(log)]
    journal, kills, kept = journal_path(out), 0, b""
    for _ in range(4):
        before = whole_lines(journal)
        kills += killed_somewhere(started(command), journal, draw.uniform(0, 0.05), before)
        now = journal.read_bytes()
        assert now.startswith(kept)
        kept = now[: now.rfind(b"\n") + 1]
    assert kills >= 3
    ended_well(started(command))
    once = tmp_path / "once.json"
    ended_well(started([sys.executable, "-c", CHILD, str(once), str(tmp_path / "log2")]))
    assert out.read_bytes() == once.read_bytes()
    measured = log.read_text().split()
    assert set(measured) == {probe.key for probe in probes(*place[:3])}
    assert len(measured) <= len(set(measured)) + kills


@pytest.mark.dist
def test_a_real_profile_that_was_killed_goes_on(tmp_path: Path) -> None:
    clips, out = tmp_path / "clips.csv", tmp_path / "table.json"
    clips.write_text("id,width,height,num_frames,fps\na,256,256,1,16\n")
    command = [
        sys.executable, "-c", BRIEFLY, "profile", str(clips), "--model", "tiny-dit", "--cluster", "cpux2",
        "--out", str(out), "--no-links",
    ]  # fmt: skip
    journal = journal_path(out)
    assert killed_somewhere(started(command), journal, random.Random(3).uniform(0.05, 0.4), 5)
    assert not out.exists()
    now = journal.read_bytes()
    kept = now[: now.rfind(b"\n") + 1]
    ended_well(started(command))
    assert journal.read_bytes().startswith(kept)
    units = [json.loads(line)["probe"] for line in journal.read_text().splitlines()[1:]]
    assert len(set(units)) == len(units)
    table = read_table(str(out))
    assert table.sources == ("measured",)
    assert all(row.price.linear_ns > 0 and row.price.kept_bytes > 0 for row in table.rows)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ns", "0"), ("ns", "-5.0"), ("ns", "NaN"), ("ns", "Infinity"), ("ns", "1e999"), ("ns", "null"),
        ("own_ns", "0"), ("own_ns", "-1"), ("pace_ns", "0"), ("seconds", "-1"), ("weight_bytes", "0"),
    ],
)  # fmt: skip
def test_a_time_that_cannot_be_one_is_refused_in_a_journal(tmp_path: Path, field: str, value: str) -> None:
    place = setting()
    header = JournalHeader(host=HOST, model="m", cluster="c", device="cpu", dtype="fp32", checkpoint="full")
    path = tmp_path / "t.journal.jsonl"
    journal = Journal(path, header)
    journal.add(made_result(place, Probe(place.buckets[0], WHOLE)))
    journal.close()
    Journal(path, header).close()
    first, second = path.read_bytes().splitlines()
    content = msgspec.json.decode(second)
    target = content["samples"][0] if field == "ns" else content
    target[field] = "here"
    path.write_bytes(first + b"\n" + msgspec.json.encode(content).replace(b'"here"', value.encode()) + b"\n")
    with pytest.raises(FormatError, match="journal"):
        Journal(path, header)


@pytest.mark.parametrize("damage", ["a pace", "no samples"])
def test_a_result_that_no_machine_gives_is_refused_in_a_journal(tmp_path: Path, damage: str) -> None:
    place = setting()
    header = JournalHeader(host=HOST, model="m", cluster="c", device="cpu", dtype="fp32", checkpoint="full")
    path = tmp_path / "t.journal.jsonl"
    journal = Journal(path, header)
    for count in (1, 2, 3):
        journal.add(made_result(place, Probe(place.buckets[0], WHOLE, count)))
    journal.close()
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    if damage == "a pace":
        lines[2]["pace_ns"] *= 1000
    else:
        lines[2]["samples"] = []
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    with pytest.raises(FormatError, match="the same work took" if damage == "a pace" else "journal"):
        Journal(path, header)


def test_two_profiles_do_not_write_one_journal(tmp_path: Path) -> None:
    header = JournalHeader(host=HOST, model="m", cluster="c", device="cpu", dtype="fp32", checkpoint="full")
    path = tmp_path / "t.journal.jsonl"
    first = Journal(path, header)
    with pytest.raises(FileError, match="another profile"):
        Journal(path, header)
    first.close()
    Journal(path, header).close()


def test_a_file_that_is_no_journal_is_not_written_over(tmp_path: Path) -> None:
    header = JournalHeader(host=HOST, model="m", cluster="c", device="cpu", dtype="fp32", checkpoint="full")
    path = tmp_path / "t.journal.jsonl"
    path.write_bytes(b"my notes")
    with pytest.raises(FormatError, match="journal"):
        Journal(path, header)
    assert path.read_bytes() == b"my notes"
    path.write_bytes(msgspec.json.encode(header)[:40])
    Journal(path, header).close()
    assert path.read_bytes() == msgspec.json.encode(header) + b"\n"
