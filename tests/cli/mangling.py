"""Ways to spoil a valid file: by hand-picked garbage, by plausible values, and by pure noise."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

GARBAGE = [
    "NaN", "nan", "Infinity", "-inf", "1e400", "-1e400", "1e308", "5e-324", "0.5", "-1", "0", "-0.0", "1", "2", "3",
    "7", "1000000000", str(2**31), str(2**62), str(2**63), str(2**64), "9" * 40, "1" + "0" * 400, '""', '"x"', '"NaN"',
    '"-5"', '"1e400"', '"1/0"', '"1e-999999999"', '"\\u0000"', '"\\ud800"', '"\U0001f600"', '"0x0"', '"1x1x2"',
    '"65536x65536x10000000"', '"zellige.plan/2"', '"zellige.prices/99"', '"h0"', '"g0n1"', '"g3n1"', '"a800x8"',
    '"wan2.1-t2v-14b"', '"../.."', '"x.toml"', "null", "true", "false", "[]", "{}", "[[]]", '{"a": 1}', "[1, 2]", "",
    "[" * 5000, '{"a":' * 3000, "''", "2026-01-01", "0x10", "1_000", "\x00", "\ufeff", ",", "\n", '"',
]  # fmt: skip

NUMBERS = [
    "0",
    "0",
    "1",
    "2",
    "3",
    "5",
    "6",
    "7",
    "13",
    "64",
    "1000",
    "0.5",
    "1e-9",
    "1e18",
    *(str(2**n) for n in (20, 31, 53, 62)),
]
WORDS = [
    '""',
    '"x"',
    '"h2"',
    '"g2n2"',
    '"a800x16"',
    '"wan2.1-t2v-14b"',
    '"256x256x16"',
    '"0x0"',
    '"full"',
    '"none"',
    '"group"',
]
VALUES: list[Any] = [
    0,
    1,
    2,
    3,
    5,
    7,
    -1,
    2**40,
    2**62,
    0.5,
    "",
    "x",
    "256x256x16",
    "0x0x0",
    "group",
    None,
    True,
    [],
    {},
    [0, 0],
]
TIMES = ("linear_ns", "attention_ns", "exchange_ns", "recompute_ns")
SWEPT = [
    TIMES,
    TIMES,
    ("launch_ns",),
    ("kept_bytes",),
    ("live_bytes",),
    ("comm_bytes",),
    ("num_nodes",),
    ("h", "k"),
    ("ranks",),
]

NUMBER = re.compile(r"(?<![\w.\"-])\d+(?:\.\d+)?(?![\w.\"-])")
JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null')
TOML_TOKEN = re.compile(r'"[^"]*"|-?\d+(?:\.\d+)?|\[\[?\w+\]\]?|\b[a-z_]+\b')
CSV_TOKEN = re.compile(r"[^,\n]+")

WHOLE_FILES = [
    b"", b"\n", b" \t\n", b"\xef\xbb\xbf", b"\x00", b"\xff\xfe", b"null", b"[]", b"{}", b"0", b'"x"', b"{",
    b"[" * 100_000, b'{"a":' * 50_000, b"a" * 200_000, b'{"schema": 5}', b'{"schema": "zellige.plan/1"}',
    b'{"schema": "zellige.prices/1", "rows": []}', b'schema = "zellige.cluster/1"', b'schema = "zellige.model/2"',
    b'schema = "zellige.device/1"', b'schema = "zellige.workload/1"\nclips = []', b"a." * 2_000 + b"b = 1",
    b"a = " + b"[" * 20_000, b"width,height,num_frames\n", b"width,width,height,num_frames\n1,1,1,1\n",
    b'width,height,num_frames\n"1,1,1', b"\r\r\n\r", b"width\theight\tnum_frames\n",
]  # fmt: skip


def mangle(text: str, token: re.Pattern[str], chance: random.Random) -> bytes:
    """A valid file with tokens replaced by values of their kind or by garbage, lines doubled, lost or cut off."""
    for _ in range(chance.randint(0, 3)):
        spots = [match.span() for match in token.finditer(text)]
        if not spots:
            break
        start, stop = chance.choice(spots)
        text = text[:start] + replacement(text[start:stop], text, chance) + text[stop:]
    lines = text.splitlines(keepends=True) or [""]
    at = chance.randrange(len(lines))
    change = chance.choice(("none", "none", "none", "none", "double", "drop", "cut", "bytes"))
    if change == "double":
        text = "".join([*lines[: at + 1], *lines[at:]])
    elif change == "drop":
        text = "".join([*lines[:at], *lines[at + chance.randint(1, 3) :]])
    data = text.encode("utf-8", "surrogatepass")
    spot = chance.randint(0, len(data))
    if change == "cut":
        return data[:spot]
    return data[:spot] + bytes(chance.choices(range(256), k=4)) + data[spot:] if change == "bytes" else data


def replacement(old: str, text: str, chance: random.Random) -> str:
    """Mostly of the token's own kind, so that it passes the first check; else anything."""
    if chance.random() < 0.2:
        return chance.choice(GARBAGE)
    if re.fullmatch(r"[-+0-9.eE]+", old):
        return chance.choice(NUMBERS)
    if old.startswith('"'):
        return str(chance.choice(re.findall(r'"[^"\n]*"', text) + WORDS))
    return str(chance.choice(re.findall(r"\w+", text)))


def edit(text: str, chance: random.Random) -> bytes:
    """Valid JSON with some values set, a key set everywhere, or items of a list lost or doubled."""
    document = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        holders = list(containers(document))
        holder = chance.choice(holders)
        change = chance.choice(("set", "everywhere", "thin", "double"))
        if change == "set" and holder:
            key = chance.choice(sorted(holder) if isinstance(holder, dict) else range(len(holder)))
            holder[key] = chance.choice(VALUES)
        elif change == "everywhere":
            keys, value = chance.choice(SWEPT), chance.choice((0, 0, 1, 2, 3, 2**40, 2**62))
            for other in holders:
                if isinstance(other, dict):
                    other.update({key: value for key in keys if key in other})
        else:
            lists = [other for other in holders if isinstance(other, list) and other]
            thinned = chance.choice(lists)
            first, step = chance.randrange(len(thinned)), chance.randint(1, 3)
            thinned[:] = thinned[first::step] if change == "thin" else [*thinned, thinned[first]]
    return json.dumps(document).encode()


def containers(value: Any) -> Iterator[Any]:
    """All objects and lists inside a JSON value, itself included."""
    if isinstance(value, dict | list):
        yield value
        for inside in value.values() if isinstance(value, dict) else value:
            yield from containers(inside)


def renumber(text: str, chance: random.Random) -> bytes:
    """One to three numbers replaced by others: what is read without complaint, and must then be computed with."""
    for _ in range(chance.randint(1, 3)):
        start, stop = chance.choice([match.span() for match in NUMBER.finditer(text)])
        text = text[:start] + chance.choice(NUMBERS) + text[stop:]
    return text.encode()


def garbage(text: str, token: re.Pattern[str], chance: random.Random) -> bytes:
    """Mostly spoilt files; some of nothing but random bytes, some of the special ones."""
    kind = chance.randrange(12)
    if kind == 0:
        return bytes(chance.choices(range(256), k=chance.randint(1, 40)))
    if kind == 1:
        return chance.choice(WHOLE_FILES)
    if kind < 6:
        return mangle(text, token, chance)
    return edit(text, chance) if text.startswith("{\n") else renumber(text, chance)
