"""Every error has a way out: by its class at least, and where the class cannot know, by the place that raises it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import zellige
from zellige import errors
from zellige.errors import FileError, FormatError, InternalError, SchemaVersionError, UsageError, ZelligeError

PACKAGE = Path(zellige.__file__).parent

BUGS = {"ZelligeError", "InternalError", "WireBytesError"}
"""Errors that only a bug raises: the way out is a report."""

VAGUE = {kind.__name__ for kind in (UsageError, FileError, FormatError, SchemaVersionError)}
"""Classes of so many causes that each place has to say its own way out."""

OWN_KEEPING = {"sim", "profile"}
"""Rooms and modules whose usage errors are met by programs; their files' errors have the class's way out."""


def kinds() -> list[type[ZelligeError]]:
    """All classes of errors, those of the rooms included."""
    for module in pkgutil.iter_modules([str(PACKAGE / "exec")], "zellige.exec."):
        if module.name == "zellige.exec.launch":
            importlib.import_module(module.name)
    found, waiting = [], [ZelligeError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("zellige")]


@pytest.mark.parametrize("kind", [k for k in kinds() if k.__module__ == errors.__name__], ids=lambda k: k.__name__)
def test_every_class_has_a_way_out(kind: type[ZelligeError]) -> None:
    text = str(kind("it cannot be"))
    assert text.splitlines()[0] == f"error[{kind.code}] it cannot be"
    assert text.splitlines()[-1].startswith("  try: ")
    assert kind("it cannot be").as_dict()["fix"] == kind.way_out != ""
    assert ("report" in kind.way_out) >= (kind.__name__ in BUGS)
    assert "bug" not in kind.way_out or kind.exit_code == 70
    assert str(kind("it cannot be", fix="another one")).endswith("  try: another one")


def test_classes_say_their_own_way_out() -> None:
    """Only a class whose errors are bugs says no more than the base."""
    silent = {kind.__name__ for kind in kinds() if kind.way_out == ZelligeError.way_out}
    assert silent == {"ZelligeError", "InternalError"}
    assert InternalError.exit_code == 70


def raised(source: str) -> Iterator[tuple[int, str, ast.expr | None]]:
    """(line, class, fix) of every error of the house that a source makes."""
    names = {kind.__name__ for kind in kinds()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            fixes = [keyword.value for keyword in node.keywords if keyword.arg == "fix"]
            yield node.lineno, node.func.id, fixes[0] if fixes else None


def complaints(source: str) -> list[str]:
    """Errors of vague classes without a way out of their own, and ways out that are empty."""
    found = []
    for line, name, fix in raised(source):
        if isinstance(fix, ast.Constant) and fix.value == "":
            found.append(f"{line}: {name} has an empty way out")
        elif fix is None and name in VAGUE:
            found.append(f"{line}: {name} says no way out")
    return found


def test_every_place_that_raises_says_a_way_out() -> None:
    modules = [path for path in sorted(PACKAGE.rglob("*.py")) if not {path.parent.name, path.name} & OWN_KEEPING]
    texts = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in modules}
    assert sum(len(list(raised(text))) for text in texts.values()) > 150
    assert {name: found for name, text in texts.items() if (found := complaints(text))} == {}


def test_what_is_missing_is_seen() -> None:
    assert complaints('raise UsageError("no", fix="yes")') == []
    assert complaints('raise UsageError("no")') == ["1: UsageError says no way out"]
    assert complaints('raise FormatError("no", fix="")') == ["1: FormatError has an empty way out"]
    assert complaints('raise NoRoomError("no")') == []
