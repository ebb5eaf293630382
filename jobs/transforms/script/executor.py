"""Runs batches through a script: the work of a Spark task, without Spark.

Every row has `_gs_pos`. A script may return several rows for one, so `sub` becomes `sub * FAN_OUT + number`
for all of its rows. This keeps the order of rows that an earlier transform made from one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.jobs.transforms.script.decode import ValueRefusedError, decode_output
from headrace.jobs.transforms.script.encode import encode_columns
from headrace.jobs.transforms.script.process import (
    Program,
    ScriptLimits,
    ScriptProcess,
    StoppedError,
    borrow_process,
)
from headrace.pipeline.errors import DataError, FileLocation, HeadraceError, UserError
from headrace.pipeline.sql.system_columns import FAN_OUT, OP, POS
from headrace.pipeline.types.durations import spell_duration

pc: Any = pyarrow.compute  # its functions are made at import, unseen by type checkers

_BYTES = 4 << 20
"""Approximate bytes of Arrow data per call."""
_CHANCE = "$hr_chance"
"""The function of runtime.js that replaces Math.random. It raises an error."""
_FRAME = re.compile(r"^\s*at (?:(.*?) \()?<input>:(\d+)(?::(\d+))?\)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """The work of a script node. `outputs` are the output columns: the checked type, and the type in rows.

    `text_at` is the location of line 1 of the script in its file. `key` are columns that identify a row to
    people.
    """

    node: str
    program: Program
    limits: ScriptLimits
    inputs: tuple[str, ...]
    outputs: dict[str, tuple[pa.DataType, pa.DataType]]
    batch: int
    key: tuple[str, ...] = ()
    text_at: FileLocation | None = None

    def at(self, moment: datetime) -> Script:
        """Return the same script with a clock that is fixed at this time."""
        return replace(self, program=replace(self.program, fixed=int(moment.timestamp() * 1000)))

    def check(self) -> None:
        """Load the script without running it. Raises UserError with its location if it does not load."""
        vm = ScriptProcess(self.limits)
        try:
            self._load(vm)
        finally:
            vm.end()

    def rows(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the output of the batches, with the system columns, in `schema`.

        Raises UserError; some rows may have been yielded before it.
        """
        count, last, tail = 0, None, None
        with borrow_process(self.limits) as vm:
            self._load(vm)
            for whole in batches:
                for last in self._slices(whole):
                    count += last.num_rows
                    tail = None
                    for output, of_last in self._through(vm, last, schema):
                        yield output
                        tail = output.slice(output.num_rows - of_last)
            if last is not None and count > 1 and self.program.deterministic:
                self._check_determinism(vm, last.slice(last.num_rows - 1), tail, schema)

    def _load(self, vm: ScriptProcess) -> None:
        try:
            vm.open(self.program)
        except StoppedError as error:
            raise self._explain_error(error, None) from None

    def _slices(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        each = max(1, min(self.batch, batch.num_rows * _BYTES // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, each):
            yield batch.slice(start, each)

    def _through(
        self, vm: ScriptProcess, batch: pa.RecordBatch, schema: pa.Schema
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the output of a batch in parts.

        Each part comes with the number of rows at its end that come from the last input row.
        """
        text = encode_columns([batch.column(name) for name in (*self.inputs, OP)])
        try:
            for piece in vm.rows(text):
                yield self._batch(piece, batch, schema)
        except StoppedError as error:
            raise self._explain_error(self._locate_error(error, text), batch) from None

    def _batch(self, piece: bytes, batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, int]:
        try:
            row, number, op, columns = decode_output(piece, self.outputs)
        except ValueRefusedError as error:
            name = list(self.outputs)[error.column]
            msg = f"column `{name}` of what the script returned: {error.text}"
            raise DataError(
                msg, node=self.node, hint="Return another value, or correct the type in `schema`."
            ) from None
        pos = batch.column(POS).take(row)
        try:
            sub = pc.add_checked(pc.multiply_checked(pos.field("sub"), FAN_OUT), number)
        except pa.ArrowInvalid:
            msg = "more than three row-generating transforms in a chain; the limit is three"
            raise DataError(msg, node=self.node, hint="Do the work of two of them in one.") from None
        fields = [pos.field(name) if name != "sub" else sub for name in (field.name for field in pos.type)]
        hidden = pa.StructArray.from_arrays(fields, names=[field.name for field in pos.type])
        of_last = pc.sum(pc.equal(row, batch.num_rows - 1)).as_py() or 0
        return pa.RecordBatch.from_arrays([*columns, op, hidden], schema=schema), of_last

    def _locate_error(self, error: StoppedError, text: str) -> StoppedError:
        """Return the same failure with its row.

        If the process did not report the row, the batch runs again row by row.
        """
        if error.row >= 0 or error.kind == "threw":
            return error
        try:
            with borrow_process(self.limits) as vm:
                vm.open(self.program)
                for _ in vm.rows(text, one=True):
                    continue
        except StoppedError as again:
            return again
        return error

    def _check_determinism(
        self, vm: ScriptProcess, row: pa.RecordBatch, before: pa.RecordBatch | None, schema: pa.Schema
    ) -> None:
        """Check that a deterministic script returns the same rows for its last row alone, in a fresh engine.

        A script that counts, or keeps values of earlier rows, would return other rows when a replay uses
        other batches.
        """
        self._load(vm)
        alone = [one for piece, _ in self._through(vm, row, schema) for one in piece.to_pylist()]
        if repr(before.to_pylist() if before is not None else []) != repr(alone):
            where = self._row(row, 0)
            msg = (
                f"the script gives other rows for {where} when it is processed alone: it keeps something"
                " from row to row"
            )
            hint = (
                "Let the result depend on `input` alone; or set `deterministic: false`: results are then"
                " stored, and a replay reads them."
            )
            raise DataError(msg, hint=hint, node=self.node)

    def _explain_error(self, error: StoppedError, batch: pa.RecordBatch | None) -> HeadraceError:
        """Return the error of a script: the row, the limit or message, and the location in the script."""
        at = f"{self._row(batch, error.row)}: " if batch is not None else ""
        seconds = spell_duration(timedelta(seconds=self.limits.seconds))
        match error.kind:
            case "time":
                more = f" ({error.text})" if "native" in error.text or "life" in error.text else ""
                msg, hint = (
                    f"{at}the script took longer than its `timeout` of {seconds}{more}",
                    "Make it quicker, or raise `timeout`.",
                )
            case "memory":
                msg = (
                    f"{at}the script used more memory than its `memory_limit` of"
                    f" {self.limits.memory >> 20} MiB"
                )
                hint = "Use less memory, or raise `memory_limit`."
            case "died":
                msg = (
                    f"{at}the script's process was ended by the system ({error.text}) because memory ran out"
                    " or by a fault of the engine"
                )
                hint = (
                    "Use less memory and less nesting in the script; raise `memory_limit` if it needs more."
                )
            case _ if error.text.startswith("InternalError: out of memory"):
                return self._explain_error(StoppedError("memory", error.row, ""), batch)
            case _:
                message = error.text.removeprefix("Refused: ")
                # An error of a whole script has no line in it.
                place, where = (
                    self._place(error.stack)
                    if batch is not None or message == error.text
                    else (self.text_at, "")
                )
                if batch is None:
                    return UserError(
                        f"the script does not load: {message}{where}", node=self.node, place=place
                    )
                return DataError(
                    f"{at}{message}{where}",
                    node=self.node,
                    hint="Fix the script, or filter such rows out before it.",
                )
        return DataError(msg, node=self.node, hint=hint)

    def _place(self, stack: str) -> tuple[FileLocation | None, str]:
        """Return where in the script an error was raised, as a location and as text.

        Frames of Headrace end the search.
        """
        lines = self.program.script.count("\n") + 1
        for name, line, column in _FRAME.findall(stack):
            if name == _CHANCE:
                continue  # it is called by the script, and is no place in it
            if name.startswith("$hr_"):
                break
            number = min(max(int(line) - 1, 1), lines)
            known = column and number == int(line) - 1  # an error of an unexpected end is after its last line
            if self.text_at is not None and self.text_at.line is not None:
                shift = (self.text_at.column or 1) - 1
                place = replace(
                    self.text_at,
                    line=self.text_at.line + number - 1,
                    column=int(column) + shift if known else None,
                )
                return place, f" (line {number} of the script, {place})"
            return None, f" (line {number} of the script)"
        return self.text_at, ""

    def _row(self, batch: pa.RecordBatch | None, row: int) -> str:
        """Return the description of a row: its position in its source, and its key if the node has one."""
        if batch is None or not 0 <= row < batch.num_rows:
            return "a row of this epoch"
        pos = batch.column(POS)[row].as_py()
        keys = [
            f"{name} {batch.column(name)[row].as_py()}" for name in self.key if name in batch.schema.names
        ]
        result = f"partition {pos['part']}, offset {pos['off']}"
        return f"row {', '.join(keys)} ({result})" if keys else f"row at {result}"
