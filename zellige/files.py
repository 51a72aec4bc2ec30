"""Read and write the nouns: TOML that people write, canonical JSON that programs write, and errors that name the spot.

Files are data. Each starts with ``schema = "zellige.<kind>/<version>"``; a newer version is refused by name and an
unknown key is an error with a suggestion. Writing goes to a temporary file that is renamed, so nothing is half-written.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import msgspec

from zellige.errors import FileError, FormatError, SchemaVersionError, UsageError
from zellige.interrupts import held

T = TypeVar("T")

PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]

WRITTEN_BY = {
    "zellige.plan": "zellige-sim plan BATCH -o FILE",
    "zellige.schedule": "zellige-sim plan BATCH --micro-steps auto -o FILE",
    "zellige.prices": "zellige-sim prices BATCH -o FILE (or profile BATCH --out FILE)",
    "zellige.clips": "a clip list has one JSON object a line, with width, height and num_frames",
    "zellige.workload": "zellige-sim catalog show motivation is an example to start from",
    "zellige.cluster": "zellige-sim catalog show a800x8 is an example to start from",
    "zellige.model": "zellige-sim catalog show wan2.1-t2v-1.3b is an example to start from",
    "zellige.device": "zellige-sim catalog show a800-80gb is an example to start from",
}
"""Where a file of a kind comes from."""

READ_BY = {
    "zellige.plan": "simulate, execute and check take this file",
    "zellige.schedule": "check takes this file; simulate and execute take one of its micro-steps, as FILE#1",
    "zellige.prices": "--prices takes this file",
    "zellige.clips": "plan, compare and check take this file",
    "zellige.sweep": "compare --out goes on with this file",
    "zellige.cluster": "--cluster takes this file",
    "zellige.model": "--model takes this file",
    "zellige.buckets": "--buckets takes this file",
}
"""What takes a file of a kind."""

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`")


A_READABLE_PATH = "a path that exists, and that you may read"


def read_text(path: Path) -> str:
    """The UTF-8 text of a file; :class:`FileError` says why it cannot be read."""
    refuse_device(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileError(
            f"there is no file {str(path)!r}", fix="check the path; catalog list shows what can be given by name"
        ) from None
    except IsADirectoryError:
        raise FileError(f"{str(path)!r} is a directory", fix="name a file inside it") from None
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{str(path)!r} is not UTF-8 text", where=f"byte {error.start}", fix="save it as UTF-8, or name a text file"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot read {str(path)!r}: {reason}", fix=A_READABLE_PATH) from None


def refuse_device(path: Path) -> None:
    """Raise :class:`FileError` for what may have no end, as /dev/zero; pipes and missing files are not its business."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise FileError(f"{str(path)!r} is a device, not a file", fix="name a file")


def decode_toml(text: str, kind: type[T], where: str) -> T:
    """Decode TOML into a noun; raises :class:`FormatError` or :class:`SchemaVersionError` naming ``where``."""
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        fix = "correct it there; zellige-sim catalog show NAME prints examples"
        raise FormatError("this is not TOML", where=where, details=(str(error),), fix=fix) from None
    return convert(raw, kind, where)


def decode_json(text: str, kind: type[T], where: str) -> T:
    """Decode JSON into a noun; raises :class:`FormatError` or :class:`SchemaVersionError` naming ``where``."""
    return convert(parse_json(text, where), kind, where)


def parse_json(text: str, where: str) -> Any:
    """Any JSON value; NaN and infinities are refused, as JSON does."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        fix = "correct it there, or write the file anew with the command that made it"
        raise FormatError("this is not JSON", where=where, details=(str(error),), fix=fix) from None


def convert(raw: Any, kind: type[T], where: str) -> T:
    """Turn decoded data into a noun, checking its schema first."""
    check_schema(raw, _expected_schema(kind), where)
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise FormatError(str(error), where=where, fix=_suggestion(str(error), kind)) from None


def check_schema(raw: Any, expected: str, where: str) -> None:
    """Refuse data of another kind or of a newer version, by name."""
    if not expected:
        return
    found = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(found, str):
        fix = WRITTEN_BY.get(expected.split("/")[0], f'schema = "{expected}" at its beginning')
        raise FormatError(f'the file does not say what it is: no schema = "{expected}"', where=where, fix=fix)
    if found == expected:
        return
    if found.split("/")[0] == expected.split("/")[0]:
        raise SchemaVersionError(
            f"this file is {found}; this version of Zellige reads {expected}",
            where=where,
            fix="upgrade Zellige, or export the file again",
        )
    raise SchemaVersionError(
        f"this file is {found}, where {expected} is needed", where=where, fix=other_kind(found, expected)
    )


def other_kind(found: str, expected: str) -> str:
    """A way out for who gave a file of another kind: where to take it, and where the right kind comes from."""
    ways = (READ_BY.get(found.split("/")[0], ""), WRITTEN_BY.get(expected.split("/")[0], ""))
    return "; ".join(filter(None, ways))


def canonical_json(value: Any) -> bytes:
    """One byte string for equal values: keys sorted, no white space."""
    return msgspec.json.encode(value, order="sorted")


def readable_json(value: Any) -> str:
    """The same data for people: declared key order, two spaces."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def digest(value: Any) -> str:
    """``sha256:`` and the hash of the canonical JSON of a value."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def printable(name: str) -> str:
    """A file's name as text that can be printed and encoded: what is not UTF-8 in it becomes question marks."""
    return name.encode("utf-8", "replace").decode()


MOST_SHOWN = 60


def shown(value: object) -> str:
    """A value of a file as messages show it: as it would be written in code, and cut where it is long."""
    return cut(repr(printable(value) if isinstance(value, str) else value))


def cut(text: str) -> str:
    """The text, cut where it is too long for a message."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


ANOTHER_PLACE = "a name in a folder that exists, that you may write to and that has space left"
"""The way out where something cannot be written."""


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there; raises :class:`FileError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {str(path)!r}: {error.strerror or error}", fix=ANOTHER_PLACE) from None
    except ValueError as error:
        raise FileError(f"cannot make the folder {str(path)!r}: {error}", fix=ANOTHER_PLACE) from None


def refuse_dash(path: Path, option: str) -> None:
    """Raise :class:`UsageError` for an output called ``-``, which elsewhere means standard output."""
    if str(path) == "-":
        raise UsageError(
            f"{option} - would write a file called '-'",
            fix="a name for the file; what a command answers is on standard output anyway, as JSON with --json",
        )


def require_place(path: Path) -> None:
    """Raise :class:`FileError` where :func:`write_bytes` would fail, before there is anything to write; writes nothing.

    Disks that fill up later, and pipes and devices that take nothing, are found when they are written to.
    """
    try:
        target = path.resolve()
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        if not target.exists() or target.is_file():
            _try_to_make(target)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def require_folder_place(path: Path) -> None:
    """Raise :class:`FileError` where a folder cannot be made, or nothing can be made in one that is there."""
    try:
        target = path.resolve()
        there = next(above for above in (target, *target.parents) if above.exists())
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{str(there)!r} is a file")
        _try_to_make(there / target.name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot make the folder {str(path)!r}: {reason}", fix=ANOTHER_PLACE) from None


def _try_to_make(path: Path) -> None:
    """Make, and take away, the temporary file that a file would be written to."""
    with held():
        descriptor, temporary = tempfile.mkstemp(prefix=_prefix(path), dir=path.parent)
        os.close(descriptor)
        os.unlink(temporary)


def _prefix(path: Path) -> str:
    """The begin of a temporary file's name, which may be no longer than other names."""
    return f".{path.name.encode()[:200].decode(errors='ignore')}."


def lock(
    file: IO[bytes], path: Path, writer: str = "process", fix: str = "wait for it to end, or name another file"
) -> None:
    """Keep a file to this process while it is open.

    Raises :class:`FileError` where another process writes it, and closes the file.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise FileError(f"another {writer} is writing {str(path)!r}", fix=fix) from None


def _unwritable(path: Path, error: OSError | ValueError) -> FileError:
    reason = getattr(error, "strerror", None) or error
    return FileError(f"cannot write {str(path)!r}: {reason}", fix=ANOTHER_PLACE)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file in one step: to a temporary file beside it, then a rename."""
    try:
        content = text.encode()
    except ValueError as error:
        raise FileError(f"cannot write {str(path)!r}: {error}", fix="text without half characters") from None
    write_bytes(path, content)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step: to a temporary file beside it, then a rename.

    Signals that end the process wait, so that no temporary file is left. Links are followed; pipes and devices are
    written to as they are.
    """
    try:
        path = path.resolve()
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(content)
            return
        with held(), _replacing(path) as handle:
            handle.write(content)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[typing.BinaryIO]:
    descriptor, temporary = tempfile.mkstemp(prefix=_prefix(path), dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _expected_schema(kind: Any) -> str:
    default = getattr(kind, "SCHEMA", "")
    return default if isinstance(default, str) else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean h200x8? `` for a name that begins or resembles a known one; empty for any other."""
    names = list(known)
    close = [each for each in names if name and each.startswith(name)] or difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}? " if close else ""


def _suggestion(message: str, kind: Any) -> str:
    match = _UNKNOWN.search(message)
    if match is None:
        return ""
    known = sorted(_field_names(kind, set()))
    close = difflib.get_close_matches(match["key"], known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"the known keys are {', '.join(known)}"


def _field_names(kind: Any, seen: set[Any]) -> set[str]:
    names: set[str] = set()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        for field in msgspec.structs.fields(kind):
            names.add(field.encode_name)
            names |= _field_names(field.type, seen)
    elif isinstance(kind, types.UnionType) or typing.get_args(kind):
        for argument in typing.get_args(kind):
            names |= _field_names(argument, seen)
    return names
