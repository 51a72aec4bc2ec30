"""Plan files: written whole, checked against their prices, and found out where they were changed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from command_line import MIXED, MODEL, SETTING, Run, write

from zellige import catalog
from zellige.files import readable_json
from zellige.placement import Placement, Plan, plan_digest
from zellige.shards import ParallelConfig


def test_a_plan_that_is_written_passes_check(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    for policy in ("zellige-paper", "zellige-paper-coalesced", "dp", "usp", "static", "knapformer", "zellige"):
        assert run("plan", "mixed.jsonl", *SETTING, "--policy", policy, "-o", f"{policy}.json").code == 0
        assert run("check", f"{policy}.json").code == 0
    assert run("plan", "mixed.jsonl", *SETTING, "-o", "again.json").code == 0
    plans = [json.loads(Path(name).read_text()) for name in ("zellige.json", "again.json")]
    assert plans[0]["digest"] == plans[1]["digest"]


def test_plans_are_written_whole_or_not_at_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write("mixed.jsonl", MIXED)
    write("plan.json", "the old plan")
    inode = Path("plan.json").stat().st_ino

    def fail(*names: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        end = run("plan", "mixed.jsonl", *SETTING, "-o", "plan.json")
    assert end.code == 4
    assert "No space left" in end.err
    assert Path("plan.json").read_text() == "the old plan"
    assert sorted(os.listdir()) == ["mixed.jsonl", "plan.json"], "a temporary file was left behind"
    assert run("plan", "mixed.jsonl", *SETTING, "-o", "plan.json").code == 0
    assert Path("plan.json").stat().st_ino != inode, "written in place"
    assert sorted(os.listdir()) == ["mixed.jsonl", "plan.json"]
    write("other", "")
    assert stat.S_IMODE(Path("plan.json").stat().st_mode) == stat.S_IMODE(Path("other").stat().st_mode)


def moved(placement: Placement) -> Placement:
    """The same sequence on the next ranks, where it adds to other loads."""
    return msgspec.structs.replace(placement, ranks=tuple((rank + 1) % 4 for rank in placement.ranks))


def illegal(placement: Placement) -> Placement:
    return msgspec.structs.replace(placement, config=ParallelConfig(h=5), ranks=(0, 1, 2, 3, 4))


def with_first(plan: Plan, change: Callable[[Placement], Placement]) -> Plan:
    return msgspec.structs.replace(plan, placements=(change(plan.placements[0]), *plan.placements[1:]))


def without_memory(plan: Plan) -> Plan:
    lower = [msgspec.structs.replace(p, memory_bytes=p.memory_bytes // 2) for p in plan.predicted]
    return msgspec.structs.replace(plan, predicted=tuple(lower))


TAMPERED: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "another rank": (
        lambda plan: msgspec.structs.replace(plan, placements=(*plan.placements[:-1], moved(plan.placements[-1]))),
        "ZL406",
    ),
    "a rank that is not there": (
        lambda plan: with_first(plan, lambda p: msgspec.structs.replace(p, ranks=tuple(range(4, 4 + p.config.degree)))),
        "ZL406",
    ),
    "a sequence twice": (
        lambda plan: msgspec.structs.replace(plan, placements=(*plan.placements, plan.placements[-1])),
        "ZL406",
    ),
    "a sequence less": (lambda plan: msgspec.structs.replace(plan, placements=plan.placements[:-1]), "ZL406"),
    "another length": (
        lambda plan: with_first(plan, lambda p: msgspec.structs.replace(p, bucket="832x480x77")),
        "ZL406",
    ),
    "an illegal split": (lambda plan: with_first(plan, illegal), "ZL40"),
    "less memory": (without_memory, "ZL406"),
    "a rank less": (lambda plan: msgspec.structs.replace(plan, predicted=plan.predicted[:-1]), "ZL406"),
    "fewer bytes": (lambda plan: msgspec.structs.replace(plan, comm_bytes=plan.comm_bytes // 2), "ZL406"),
    "a higher bound": (lambda plan: msgspec.structs.replace(plan, bound_ns=plan.makespan_ns), "ZL406"),
    "a shorter step": (lambda plan: msgspec.structs.replace(plan, makespan_ns=plan.makespan_ns - 1), "ZL406"),
    "a smaller gap": (lambda plan: msgspec.structs.replace(plan, gap=plan.gap / 2), "ZL406"),
    "more memory a GPU": (lambda plan: msgspec.structs.replace(plan, memory_limit_bytes=10**12), "ZL406"),
    "another engine": (lambda plan: msgspec.structs.replace(plan, engine="per_sequence"), "ZL406"),
}


@pytest.mark.parametrize("forged", [False, True], ids=["old digest", "new digest"])
@pytest.mark.parametrize("change", TAMPERED)
def test_tampered_plans_are_findings(run: Run, change: str, forged: bool) -> None:
    """The digest gives away what was changed by hand; what was changed with care contradicts the prices."""
    write("mixed.jsonl", MIXED)
    assert run("plan", "mixed.jsonl", *SETTING, "--policy", "zellige-paper", "-o", "plan.json").code == 0
    plan = msgspec.json.decode(Path("plan.json").read_bytes(), type=Plan)
    assert plan.num_split == 1, "else some changes would change nothing"
    tamper, code = TAMPERED[change]
    tampered = tamper(plan)
    if forged:
        tampered = msgspec.structs.replace(tampered, digest=plan_digest(tampered))
    write("tampered.json", readable_json(tampered))
    end = run("check", "tampered.json", "--json")
    assert end.code == 1, end
    findings = end.json["files"][0]["findings"]
    assert findings
    assert all(finding["where"] == "tampered.json" for finding in findings)
    assert any(finding["code"].startswith(code) for finding in findings)
    digests = [finding for finding in findings if "digest" in finding["message"]]
    assert bool(digests) != forged


def test_a_split_that_the_heads_do_not_allow_is_named(run: Run) -> None:
    """On 8 ranks 5 of them are there; 5 does not divide 12 heads."""
    write("mixed.jsonl", MIXED)
    run("plan", "mixed.jsonl", "--cluster", "a800x8", *MODEL, "-o", "plan.json")
    plan = msgspec.json.decode(Path("plan.json").read_bytes(), type=Plan)
    write("tampered.json", readable_json(with_first(plan, illegal)))
    end = run("check", "tampered.json", "--json")
    assert end.code == 1
    (finding,) = [f for f in end.json["files"][0]["findings"] if f["code"] == "ZL203"]
    assert "long" in finding["message"]
    assert "h5" in finding["message"]


def test_a_plan_file_that_contradicts_itself_is_unreadable(run: Run) -> None:
    """A rank twice, or ranks that are not as many as the split degree, are no plan at all."""
    write("mixed.jsonl", MIXED)
    run("plan", "mixed.jsonl", *SETTING, "-o", "plan.json")
    for ranks in ([0, 0], [0, 1, 2, 3, 3], []):
        plan = json.loads(Path("plan.json").read_text())
        plan["placements"][0]["ranks"] = ranks
        write("tampered.json", json.dumps(plan))
        end = run("check", "tampered.json", "--json")
        assert end.code == 4
        assert end.error["code"] == "ZL401"


def test_plans_for_a_cluster_and_model_of_ones_own_can_be_checked(run: Run) -> None:
    for kind, name, file in (("clusters", "a800x4", "mine.toml"), ("models", "wan2.1-t2v-1.3b", "my-model.toml")):
        text = (catalog.catalog_root() / kind / f"{name}.toml").read_text(encoding="utf-8")
        write(file, text.replace(f'name = "{name}"', f'name = "{file.removesuffix(".toml")}"'))
    setting = ("--cluster", "mine.toml", "--model", "my-model.toml")
    write("mixed.jsonl", MIXED)
    assert run("plan", "mixed.jsonl", *setting, "-o", "plan.json").code == 0
    assert run("check", "plan.json", *setting).code == 0
    end = run("check", "plan.json", "--cluster", "a800x4", "--model", "my-model.toml")
    assert end.code == 2, "the plan is for another cluster"


def test_check_takes_many_files_and_adds_up_their_findings(run: Run) -> None:
    write("good.jsonl", MIXED)
    write("bad.jsonl", '{"id": "short", "width": 256, "height": 256, "num_frames": 2, "fps": 16}\n')
    end = run("check", "good.jsonl", "bad.jsonl", *MODEL, "--json")
    assert end.code == 1
    assert [len(report["findings"]) for report in end.json["files"]] == [0, 1]
    assert run("check", "good.jsonl", *MODEL).code == 0


@pytest.mark.parametrize("kind", ["clusters", "models", "devices", "workloads"])
def test_what_is_bundled_passes_check(run: Run, kind: str) -> None:
    names = [name for name in catalog.names(kind) if not name.startswith("paper-15s")]
    end = run("check", *(str(catalog.catalog_root() / kind / f"{name}.toml") for name in names), "--json")
    findings = [finding for report in end.json["files"] for finding in report["findings"]]
    assert findings == []
    assert end.code == 0


def test_a_price_table_that_is_written_prices_the_same_plan(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    assert run("prices", "mixed.jsonl", *SETTING, "-o", "prices.json").code == 0
    told = run("prices", "mixed.jsonl", *SETTING).json
    assert told == json.loads(Path("prices.json").read_text())
    assert told["header"]["assumptions"]
    assert {row["price"]["source"] for row in told["rows"]} == {"analytic"}
    plans = [run("plan", "mixed.jsonl", *SETTING, *more, "--json").json for more in ((), ("--prices", "prices.json"))]
    assert plans[0]["digest"] == plans[1]["digest"]
    assert run("check", "prices.json").code == 0


def test_an_edited_price_table_is_named_so_wherever_it_is_used(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    assert run("prices", "mixed.jsonl", *SETTING, "-o", "prices.json").code == 0
    table = json.loads(Path("prices.json").read_text())
    table["rows"][0]["price"]["linear_ns"] += 1
    write("edited.json", json.dumps(table))
    table.pop("digest")
    write("old.json", json.dumps(table))
    for name, prices in (("prices", ["analytic"]), ("edited", ["edited"]), ("old", ["analytic", "unverified"])):
        given = ("--prices", f"{name}.json")
        answer = run("compare", "mixed.jsonl", *SETTING, "--policy", "dp", *given, "--json").json
        assert answer["prices"] == prices
        assert f"prices: {', '.join(prices)}\n" in run("plan", "mixed.jsonl", *SETTING, *given, "-o", "plan.json").out
        assert run("check", "plan.json", *given).code == 0
        assert f"prices, {', '.join(prices)}" in run("check", f"{name}.json").out
    assert "changed since it was written" in run("check", "edited.json").out
