"""Ranks that stay and answer one request after another: all of them, in order, and none is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest
from oracle.made_measurements import setting
from rank_tasks import answer_requests

from zellige.exec.launch import RanksFailedError, staying_ranks
from zellige.exec.trial import staying_task
from zellige.profile.compute import trial_of
from zellige.profile.grid import Probe
from zellige.shards import ParallelConfig

pytestmark = pytest.mark.dist


def children() -> set[int]:
    """Processes of ranks that this process's fork server has started."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"forkserver" in status.read_bytes() and not is_zombie(status.parent):
                found.add(int(status.parent.name))
        except OSError:
            continue
    return found


def is_zombie(process: Path) -> bool:
    return "\nState:\tZ" in (process / "status").read_text()


def test_every_rank_answers_every_request_in_order() -> None:
    with staying_ranks(answer_requests, b"p", 3) as ask:
        for number in range(5):
            assert ask(b"%d" % number) == [b"p %d %d" % (rank, number) for rank in range(3)]
        large = os.urandom(3_000_000)
        assert ask(large) == [b"p %d " % rank + large for rank in range(3)]


@pytest.mark.parametrize(
    ("request_bytes", "said"), [(b"fail", "the last rank does not want to"), (b"die", "killed by signal 9")]
)
def test_a_rank_that_fails_ends_all_and_is_named(request_bytes: bytes, said: str) -> None:
    with staying_ranks(answer_requests, b"p", 2) as ask:
        ask(b"once")
    before = children()
    start = time.monotonic()
    with pytest.raises(RanksFailedError, match=said) as caught, staying_ranks(answer_requests, b"p", 2) as ask:  # noqa: PT012
        assert len(ask(b"first")) == 2
        ask(request_bytes)
    assert caught.value.where == "rank 1"
    assert time.monotonic() - start < 30
    assert children() <= before


def test_a_rank_that_is_killed_while_it_measures_is_named_by_the_one_that_lives() -> None:
    place = setting()
    trial = trial_of(Probe(place.buckets[3], ParallelConfig(h=2), 2), place.model, "full", "fp32", 2)
    request = msgspec.json.encode(msgspec.structs.replace(trial, repeats=10_000))

    def kill_one() -> None:
        time.sleep(3.0)
        os.kill(max(children() - before), signal.SIGKILL)

    with staying_ranks(answer_requests, b"p", 2) as ask:
        ask(b"once")
    before = children()
    killer = threading.Thread(target=kill_one)
    with pytest.raises(RanksFailedError) as caught, staying_ranks(staying_task, b"", 2) as ask:  # noqa: PT012
        killer.start()
        ask(request)
    killer.join()
    assert (caught.value.code, caught.value.exit_code) == ("ZL614", 6)
    assert "Traceback" not in "".join(caught.value.details)
    assert children() <= before


def test_an_error_of_the_launcher_leaves_no_rank() -> None:
    with staying_ranks(answer_requests, b"p", 2) as ask:
        ask(b"once")
    before = children()
    with pytest.raises(KeyError), staying_ranks(answer_requests, b"p", 2) as ask:  # noqa: PT012
        ask(b"first")
        assert len(children() - before) == 2
        raise KeyError("mine")
    assert children() <= before
