"""What a training run writes while it runs: a line of JSON a step, and TensorBoard scalars where that is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from zellige.errors import FileError
from zellige.files import NonNegativeInt, PositiveInt, write_text


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step. Exchanges and bytes are of rank 0; ``peak_memory_bytes`` is the fullest rank's, where it was measured.

    ``loss`` is the mean over all visual tokens of all ranks, ``plan`` the digest of the (first) plan of the step.
    """

    SCHEMA: ClassVar[str] = "zellige.metrics/1"

    schema: str = "zellige.metrics/1"
    step: NonNegativeInt
    loss: float
    gradient_norm: float
    tokens: PositiveInt
    step_ns: PositiveInt
    exchanges: NonNegativeInt
    received_bytes: NonNegativeInt
    peak_memory_bytes: NonNegativeInt | None = None
    plan: str


def read_metrics(path: Path) -> list[StepMetrics]:
    """All whole lines of a metrics file; a last line that a killed run left unfinished is passed over."""
    if not path.exists():
        return []
    *lines, _ = path.read_text().split("\n")
    return [msgspec.json.decode(line, type=StepMetrics) for line in lines]


class MetricsLog:
    """Appends steps to ``metrics.jsonl`` of a folder, each flushed at once.

    Resuming from a checkpoint drops the lines of steps that will be done again.
    """

    def __init__(self, directory: Path, *, steps_done: int) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write to {directory}: {error.strerror}", fix="another folder") from None
        path = directory / "metrics.jsonl"
        kept = [line for line in read_metrics(path) if line.step < steps_done]
        write_text(path, "".join(msgspec.json.encode(line).decode() + "\n" for line in kept))
        self._file = path.open("a")
        self._board = _board(directory)

    def write(self, metrics: StepMetrics) -> None:
        """Append a step."""
        self._file.write(msgspec.json.encode(metrics).decode() + "\n")
        self._file.flush()
        if self._board is not None:
            for name in ("loss", "gradient_norm", "step_ns", "received_bytes"):
                self._board.add_scalar(name, getattr(metrics, name), metrics.step)
            self._board.flush()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def _board(directory: Path) -> Any:
    """A TensorBoard writer, or None where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(directory / "tensorboard"))
