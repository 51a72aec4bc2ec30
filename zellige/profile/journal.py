"""A journal beside the table: one line a unit, written when it is measured, so that a profile can be resumed.

A unit is a probe, or the links.

The first line says what is measured, where and with which versions. A journal of anything else is refused by name. A
line that was cut off when the profile was killed is dropped; every line before it counts.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from zellige.calibration import MOST_PACE, HostInfo
from zellige.errors import FileError, FormatError, ModelMismatchError
from zellige.files import lock
from zellige.profile.timing import LinkResult, ProbeResult

SCHEMA = "zellige.profile_journal/3"


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a journal belongs to; ``together``: how many ranks measured beside each other."""

    schema: str = SCHEMA
    host: HostInfo
    model: str
    cluster: str
    device: str
    dtype: str
    checkpoint: str
    memory: bool = True
    together: int = 1


def journal_path(table: Path) -> Path:
    """The journal beside a table: ``table.journal.jsonl``."""
    return table.with_suffix(".journal.jsonl")


class Journal:
    """Measured probes by key, and links, on disk as they come."""

    def __init__(self, path: Path, header: JournalHeader) -> None:
        """Open or begin; raises :class:`ModelMismatchError` for a journal of something else."""
        self.path = path
        self.results: dict[str, ProbeResult] = {}
        self.links: LinkResult | None = None
        whole = self._read(header) if path.exists() else 0
        try:
            self._file = path.open("r+b" if whole else "wb")
            lock(self._file, path, "profile", "wait for it to end, or give this one another --out")
            if whole:
                self._file.seek(whole)
                self._file.truncate()
            else:
                self._write(msgspec.json.encode(header))
        except OSError as error:
            raise FileError(f"cannot write {str(path)!r}: {error.strerror or error}") from None

    def _read(self, header: JournalHeader) -> int:
        """Take over what was measured; returns the bytes up to the last whole line."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise FileError(f"cannot read {str(self.path)!r}: {error.strerror or error}") from None
        whole = data.rfind(b"\n") + 1
        if not whole and not msgspec.json.encode(header).startswith(data):
            raise FormatError("this is not a profile's journal", where=str(self.path), fix="another --out")
        lines = data[:whole].splitlines()
        if not lines:
            return 0
        try:
            found = msgspec.json.decode(lines[0], type=JournalHeader)
            results = [msgspec.json.decode(line, type=ProbeResult | LinkResult) for line in lines[1:]]
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise FormatError("this is not a profile's journal", where=str(self.path), details=(str(error),)) from None
        refuse_other(found, header, str(self.path))
        for result in results:
            self._keep(result)
        _refuse_absurd_paces([result for result in results if isinstance(result, ProbeResult)], str(self.path))
        return whole

    def add(self, result: ProbeResult | LinkResult) -> None:
        """Keep a result; it is on disk when this returns."""
        self._keep(result)
        self._write(msgspec.json.encode(result))

    def _keep(self, result: ProbeResult | LinkResult) -> None:
        if isinstance(result, LinkResult):
            self.links = result
        else:
            self.results[result.probe] = result

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _refuse_absurd_paces(results: Sequence[ProbeResult], where: str) -> None:
    """Raise :class:`FormatError` where the machine would have been far slower or faster than it usually was."""
    if not results:
        return
    usual = statistics.median(result.pace_ns for result in results)
    for result in results:
        if not 1 / MOST_PACE <= result.pace_ns / usual <= MOST_PACE:
            raise FormatError(
                f"the same work took {result.pace_ns} ns beside {result.probe}, and usually {usual:.0f} ns",
                where=where,
                fix="remove the journal to measure anew",
            )


def refuse_other(found: JournalHeader, wanted: JournalHeader, where: str) -> None:
    """Raise :class:`ModelMismatchError` where a journal is of another model, machine, mode or version."""
    left, right = msgspec.to_builtins(found), msgspec.to_builtins(wanted)
    pairs = [(key, left[key], right[key]) for key in right if key != "host"]
    pairs += [(f"host {key}", left["host"][key], right["host"][key]) for key in right["host"]]
    other = [(key, a, b) for key, a, b in pairs if a != b]
    if other:
        key, a, b = other[0]
        raise ModelMismatchError(
            f"this profile was begun for {key} {a!r}, not {b!r}",
            where=where,
            fix="another --out, or remove the journal to measure anew",
        )
