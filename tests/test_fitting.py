"""What a source's clips go through to train is told once for all of them, whatever changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zellige.catalog import load_model
from zellige.fitting import fitting_lines
from zellige.sources import Options, read_source

WAN = load_model("wan2.1-t2v-1.3b")


def told(folder: Path, *rows: dict[str, object], **options: object) -> list[str]:
    path = folder / "clips.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = Options(**options)
    return [
        line.removeprefix("clips.jsonl: ") for line in fitting_lines(read_source(str(path), settings), WAN, settings)
    ]


def clip(width: int, height: int, frames: int, **more: object) -> dict[str, object]:
    return {"width": width, "height": height, "num_frames": frames, "fps": 16, **more}


def test_clips_that_train_as_they_are_need_no_word(tmp_path: Path) -> None:
    assert told(tmp_path, clip(832, 480, 81), clip(512, 512, 1, count=7)) == []


def test_sizes_that_are_no_whole_tokens_are_padded(tmp_path: Path) -> None:
    rows = [clip(1920, 1080, 241, id="long", count=3), clip(1920, 1080, 1), clip(500, 512, 1), clip(832, 480, 81)]
    assert told(tmp_path, *rows) == [
        "5 of 6 clips are padded to whole tokens of 16x16 pixels (long-0: 1920x1080 to 1920x1088, and 2 other shapes)",
    ]


@pytest.mark.parametrize("buckets", ["832x480x81", "832x480x65"])
def test_buckets_change_sizes_and_frames(tmp_path: Path, buckets: str) -> None:
    lines = told(tmp_path, clip(1280, 720, 81), clip(832, 480, 81), clip(256, 256, 81), buckets=buckets)
    cut = "2 of 2 videos are cut to the bucket's frames (v0: 81 to 65 frames, and 1 other shape)"
    assert lines == [
        "1 of 2 clips is resized to the bucket's size (v0: 1280x720 to 832x480)",
        *([cut] if buckets.endswith("65") else []),
    ]


def test_frame_rates_and_the_frame_rule(tmp_path: Path) -> None:
    rows = [clip(832, 480, 101, fps=23.976), clip(832, 480, 83), clip(832, 480, 81, fps=0)]
    assert told(tmp_path, *rows) == [
        "1 of 3 videos is resampled to 16 fps (v0: 101 to 67 frames); --keep-fps leaves the rate alone",
        "1 video says no fps: taken as 16, the model's",
        "2 of 3 videos are cut to 4n+1 frames (v0: 67 to 65 frames, and 1 other shape)",
    ]
    assert told(tmp_path, clip(832, 480, 101, fps=23.976), resample=False) == []


def test_a_run_of_batches_is_told_of_once(tmp_path: Path) -> None:
    rows = [clip(1920, 1080, 1, batch=number) for number in range(2000)]
    assert told(tmp_path, *rows) == [
        "2,000 of 2,000 clips are padded to whole tokens of 16x16 pixels (i0: 1920x1080 to 1920x1088)"
    ]
