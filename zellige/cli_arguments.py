"""What commands refuse before they start: options given twice or empty, results that would replace an input or have no
place."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand

from zellige.errors import FileError, UsageError

ParserError: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises for arguments that it cannot parse."""


def misread(error: Any, context: Any = None) -> UsageError:
    """The parser's complaint as an error of the house, with the command's help as the way out.

    ``context`` is whose help that is where the complaint does not say: an option without its value does not.
    """
    context = error.ctx or context
    command = context.command_path if context is not None else "zellige-sim"
    return UsageError(error.format_message(), fix=f"{command} --help")


def help_alone(context: typer.Context) -> None:
    """Print the help of a group that is called without a command, and end as for a usage error."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


class StrictCommand(TyperCommand):
    """A command that raises :class:`UsageError` where an option would be ignored, or has an empty value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look at the arguments as typed, then parse them."""
        if not ctx.resilient_parsing:
            refuse_empty(args)
            try:
                _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            except ParserError as misuse:
                raise misread(misuse, ctx) from None
            refuse_repeated(order)
        return super().parse_args(ctx, args)


def refuse_empty(args: Iterable[str]) -> None:
    """Raise for an empty argument, as an unset variable of a shell leaves it: ``--device "$DEVICE"``."""
    before = ""
    for argument in args:
        name, mark, value = argument.partition("=")
        if mark and not value and name.startswith("-"):
            before = name
        elif argument:
            before = argument
            continue
        if before.startswith("-"):
            raise UsageError(f"{before} has an empty value", fix=f"a value, or leave {before} out")
        raise UsageError(
            "an argument is empty",
            where=f"behind {before!r}" if before else "the first one",
            fix="leave it out, or set the variable that it comes from",
        )


def refuse_repeated(order: Iterable[Any]) -> None:
    """Raise for an option that takes one value and is given twice: only the last one would count."""
    for parameter, count in Counter(order).items():
        if count == 1 or parameter.param_type_name != "option" or parameter.multiple:
            continue
        if not parameter.is_flag or parameter.secondary_opts:
            name = "/".join(max(names, key=len) for names in (parameter.opts, parameter.secondary_opts) if names)
            times = "twice" if count == 2 else f"{count} times"
            raise UsageError(f"{name} is given {times}, and takes one value", fix=f"one {name}")


def refuse_overwriting(outputs: dict[str, Path | None], inputs: Iterable[str]) -> None:
    """Raise where an output, by its option, is a file that the command reads, another output, or called ``-``."""
    from zellige.files import refuse_dash

    read = [Path(name) for given in inputs if given for name in (given, given.rpartition("#")[0]) if name]
    written: dict[str, Path] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        refuse_dash(path, option)
        for source in read:
            if _same(path, source):
                raise UsageError(
                    f"{option} {path} would replace what the command reads", where=str(source), fix="another name"
                )
        for other, there in written.items():
            if _same(path, there):
                raise UsageError(f"{other} and {option} are both {path}", fix="a name for each")
        written[option] = path


def require_places(files: Mapping[str, Path | None], folders: Mapping[str, Path | None] = MappingProxyType({})) -> None:
    """Raise :class:`FileError` for outputs, by their options, that could not be written once the work is done.

    ``folders`` are made when needed; files may lie in them.
    """
    from zellige.files import require_folder_place, require_place

    made = [path for path in folders.values() if path is not None]
    for option, path in files.items():
        if path is not None and not any(_same(path.parent, folder) for folder in made):
            with _naming(option):
                require_place(path)
    for option, path in folders.items():
        if path is not None:
            with _naming(option):
                require_folder_place(path)


@contextlib.contextmanager
def _naming(option: str) -> Iterator[None]:
    try:
        yield
    except FileError as error:
        error.where = option
        raise


def _same(one: Path, other: Path) -> bool:
    """Whether two names are of one file, also through links; of names that cannot be looked up, whether they agree."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        pass
    try:
        return one.resolve() == other.resolve()
    except (OSError, ValueError, RuntimeError):
        return one == other
