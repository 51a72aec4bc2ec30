"""Results of a sweep as a file: a line that says what they are results of, then one line for each batch and policy.

A run that was ended goes on where it stopped: what is there of the last, incomplete batch is cut off, and made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, Self

import msgspec

from zellige.errors import FileError, FormatError, ModelMismatchError
from zellige.files import ANOTHER_PLACE, canonical_json, check_schema, lock
from zellige.outcomes import Outcome


class SweepHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: the digest covers the setting, the batches' source and the version; the rest is for people."""

    SCHEMA: ClassVar[str] = "zellige.sweep/1"

    schema: Literal["zellige.sweep/1"] = "zellige.sweep/1"
    digest: str
    version: str
    cluster: str
    model: str
    fidelity: str
    policies: tuple[str, ...]
    source: tuple[str, ...]


class SweepFile:
    """A file of results that is this process's alone until it is closed; ``num_batches`` are complete.

    Iterating reads the outcomes, as often as wanted. Raises :class:`FileError` where another process writes the file.
    """

    def __init__(self, path: Path, header: SweepHeader) -> None:
        self.path = path
        self._policies = header.policies
        self._header = canonical_json(header) + b"\n"
        self.num_batches = 0
        try:
            if path.exists() and not path.is_file():
                raise FileError(
                    f"{str(path)!r} is not a regular file", fix="results go on where they stopped: name a file"
                )
            path.touch()
            self._file = path.open("r+b", buffering=0)
            try:
                lock(self._file, path)
                self._repair(header)
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise self._unwritable(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the file to others. Closing twice is no error."""
        self._file.close()

    def append(self, outcomes: Iterable[Outcome]) -> None:
        """Write one batch's outcomes, whole or, where the process is ended, in part."""
        lines = b"".join(canonical_json(outcome) + b"\n" for outcome in outcomes)
        try:
            self._write(lines)
        except OSError as error:
            raise self._unwritable(error) from None
        self.num_batches += 1

    def _write(self, lines: bytes) -> None:
        self._file.seek(0, os.SEEK_END)
        while lines:
            lines = lines[self._file.write(lines) :]

    def _unwritable(self, error: OSError) -> FileError:
        return FileError(f"cannot write {str(self.path)!r}: {error.strerror or error}", fix=ANOTHER_PLACE)

    def __iter__(self) -> Iterator[Outcome]:
        decoder = msgspec.json.Decoder(Outcome)
        with self.path.open("rb") as handle:
            handle.readline()
            for line in handle:
                yield decoder.decode(line)

    def _repair(self, header: SweepHeader) -> None:
        """Check the header and all lines, and cut off what comes after the last complete batch."""
        with self.path.open("rb") as handle:
            first = handle.readline()
            if first.endswith(b"\n"):
                self._check_header(first, header)
                self._file.truncate(self._complete(handle))
                os.fsync(self._file.fileno())
                return
        if not self._header.startswith(first):
            raise FormatError("this is not a file of results", where=str(self.path), fix="another --out")
        self._file.truncate(0)
        self._write(self._header)

    def _check_header(self, line: bytes, header: SweepHeader) -> None:
        where = f"{self.path}:1"
        try:
            raw = msgspec.json.decode(line)
        except msgspec.DecodeError:
            raise FormatError("this is not a file of results", where=where, fix="another --out") from None
        check_schema(raw, SweepHeader.SCHEMA, where)
        try:
            found = msgspec.convert(raw, SweepHeader)
        except msgspec.ValidationError as error:
            raise FormatError(str(error), where=where, fix="another --out, or delete the file") from None
        if found.digest == header.digest:
            return
        changed = [
            f"{name}: {_shown(getattr(found, name))} there, {_shown(getattr(header, name))} here"
            for name in ("version", "cluster", "model", "fidelity", "policies", "source")
            if getattr(found, name) != getattr(header, name)
        ]
        raise ModelMismatchError(
            "these are results of another setting",
            where=where,
            details=tuple(changed) or ("the same names, and other options or contents",),
            fix="the same options as before to go on, or another --out",
        )

    def _complete(self, handle: BinaryIO) -> int:
        """Where the last complete batch ends."""
        decoder = msgspec.json.Decoder(Outcome)
        end = handle.tell()
        place = end
        for number, line in enumerate(iter(handle.readline, b"")):
            if not line.endswith(b"\n"):
                break
            batch, policy = divmod(number, len(self._policies))
            where = f"{self.path}:{number + 2}"
            try:
                outcome = decoder.decode(line)
            except (msgspec.DecodeError, ValueError) as error:
                raise FormatError(
                    f"this line is no result: {error}", where=where, fix="another --out, or cut the file off before it"
                ) from None
            if (outcome.batch, outcome.policy) != (batch, self._policies[policy]):
                raise FormatError(
                    f"{outcome.policy} on batch {outcome.batch} stands where {self._policies[policy]} on batch {batch}"
                    " belongs",
                    where=where,
                    fix="another --out",
                )
            place += len(line)
            if policy == len(self._policies) - 1:
                end, self.num_batches = place, batch + 1
        return end


def _shown(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)
