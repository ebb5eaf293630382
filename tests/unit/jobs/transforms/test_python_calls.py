"""The user's Python functions.

What they get, which rows come of what they return, and what they are told of their mistakes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.script_nodes import hidden

from headrace.connectors.user_functions import check_allowed, load_function
from headrace.jobs.transforms.output_schema import final_schema, with_hidden
from headrace.jobs.transforms.python.calls import PythonTransformTask
from headrace.jobs.transforms.python.transform import check_function
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import DataError, SchemaError, UserError
from headrace.pipeline.model.transforms import PythonTransformConfig
from headrace.pipeline.sql.system_columns import FAN_OUT, POS

MODULE = """
import pyarrow as pa
import pyarrow.compute as pc


def same(batch):
    return batch


def columns(batch):
    return pa.table({"seen": [",".join(batch.schema.names)] * batch.num_rows})


def add(batch, by=1):
    return batch.set_column(0, "id", pc.add(batch["id"], by))


def needs_rate(batch, rate):
    return batch


def any_options(batch, **options):
    return batch


def only_even(batch):
    keep = [index for index, value in enumerate(batch["id"].to_pylist()) if value % 2 == 0]
    return pa.table({"id": batch["id"].take(keep), "_gs_row": keep})


def twice(batch):
    rows = [index for index in range(batch.num_rows)] + [index for index in range(batch.num_rows)]
    return pa.table({"id": batch["id"].take(rows), "_gs_row": pa.array(rows, pa.int32()), "_gs_op": ["u"] * len(rows)})


def fewer(batch):
    return batch.slice(1)


def wrong_row(batch):
    return pa.table({"id": [1], "_gs_row": [batch.num_rows]})


def wrong_op(batch):
    return pa.table({"id": batch["id"], "_gs_op": ["x"] * batch.num_rows})


def texts(batch):
    return pa.table({"id": ["one"] * batch.num_rows})


def nothing(batch):
    return None


def fails(batch):
    return _inner(batch)


def _inner(batch):
    raise ValueError("no such rate")


def doubled(batch):
    return pa.table([batch["id"], batch["id"]], names=["id", "id"])


def leaves(batch):
    raise SystemExit("enough")


class Kind:
    @staticmethod
    def call(batch):
        return batch


number = 5
"""
TABLE = pa.table({"id": pa.array([1, 2, 3]), "name": ["a", "b", None]})


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `rates_of_ours` with a module `fx` in it."""
    folder = tmp_path / "rates_of_ours"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "fx.py").write_text(MODULE)
    (folder / "broken.py").write_text("import pyarrow\nraise RuntimeError('no licence')\n")
    (folder / "needs.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder / "fx.py"
    for name in [name for name in sys.modules if name.startswith("rates_of_ours")]:
        del sys.modules[name]


def call(
    name: str,
    table: pa.Table = TABLE,
    schema: dict[str, str] | None = None,
    ops: str = "",
    sub: int = 0,
    **options: Any,
) -> pa.Table:
    """What becomes of the table."""
    batch = options.pop("batch_size", None)
    payload = final_schema("n", schema, table.schema)
    made = PythonTransformTask("n", f"rates_of_ours.fx:{name}", options, payload, batch)
    return pa.Table.from_batches(
        made.rows(hidden(table, ops, sub).to_batches(), with_hidden(payload)), with_hidden(payload)
    )


def test_it_gets_the_payload_and_the_operation_and_nothing_else() -> None:
    assert call("columns", schema={"seen": "string"}).column("seen")[0].as_py() == "id,name,_gs_op"


def test_rows_that_stay_keep_place_and_operation() -> None:
    result = call("add", ops="iud", sub=5, by=10)
    assert result.column("id").to_pylist() == [11, 12, 13]
    assert result.column("_gs_op").to_pylist() == ["i", "u", "d"]
    assert result.column(POS).equals(hidden(TABLE, sub=5).column(POS))
    assert call("Kind.call").num_rows == 3


def test_rows_that_go_are_told_by_number() -> None:
    result = call("only_even", schema={"id": "int64"}, ops="iud", sub=1)
    assert result.column("id").to_pylist() == [2]
    assert result.column("_gs_op").to_pylist() == ["u"]
    assert result.column(POS).to_pylist() == [{"source": 9, "part": 7, "off": 1, "sub": FAN_OUT}]


def test_rows_made_of_one_are_numbered_in_their_order() -> None:
    result = call("twice", schema={"id": "int64"})
    assert result.column("id").to_pylist() == [1, 2, 3, 1, 2, 3]
    assert result.column("_gs_op").to_pylist() == ["u"] * 6
    assert [(one["off"], one["sub"]) for one in result.column(POS).to_pylist()] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    with pytest.raises(DataError, match="the limit is three"):
        call("twice", schema={"id": "int64"}, sub=FAN_OUT**3 // 8)


def test_batches_are_cut_to_size() -> None:
    assert call("add", batch_size=2).column("id").to_pylist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("fewer", SchemaError, "made 2 rows of 3 and does not say which became which"),
        ("wrong_row", SchemaError, "does not count the 3 input rows"),
        ("wrong_op", DataError, "must be i, u or d"),
        (
            "texts",
            DataError,
            "column `id` of what `rates_of_ours.fx:texts` returned is string and must be int64",
        ),
        ("nothing", SchemaError, "returned NoneType"),
        ("columns", SchemaError, "returned no column `id`"),
        ("doubled", SchemaError, "returned `id` twice"),
        ("leaves", DataError, "SystemExit: enough"),
    ],
)
def test_what_it_returns_must_fit(name: str, kind: type[UserError], message: str) -> None:
    with pytest.raises(kind) as caught:
        call(name, schema={"id": "int64"})
    assert message in caught.value.message
    assert caught.value.node == "n"


def test_a_cast_that_loses_something_is_refused() -> None:
    with pytest.raises(DataError, match="column `id`"):
        call("same", pa.table({"id": [300]}), {"id": "int8"})
    assert call("same", pa.table({"id": [100]}), {"id": "int8"}).schema.field("id").type == pa.int8()


def test_its_own_error_is_told_with_its_own_line(module: Path) -> None:
    with pytest.raises(DataError) as caught:
        call("fails")
    line = MODULE.split("\n").index('    raise ValueError("no such rate")') + 1
    assert caught.value.message == (
        "`rates_of_ours.fx:fails` failed on 3 rows from partition 7, offset 0 to partition 7, offset 2:"
        f" ValueError: no such rate ({module}:{line})"
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_package:f", "there is no module `no_such_package`"),
        ("rates_of_ours.nothing:f", "there is no module `rates_of_ours.nothing`"),
        ("rates_of_ours.fx:nobody", "there is no function `nobody` in the module `rates_of_ours.fx`"),
        ("rates_of_ours.fx:number", "there is no function `number`"),
        (
            "rates_of_ours.broken:f",
            "the module `rates_of_ours.broken` does not load: RuntimeError: no licence",
        ),
        (
            "rates_of_ours.needs:f",
            "does not load: ModuleNotFoundError: No module named 'a_package_that_nobody_has'",
        ),
    ],
)
def test_a_function_that_is_not_there_is_told_before_any_row(path: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_function(path, "n")
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("add", {"by": 2}, ""),
        ("add", {}, ""),
        ("add", {"bye": 2}, "got an unexpected keyword argument 'bye'"),
        ("same", {"batch": 1}, "multiple values for argument 'batch'"),
        ("needs_rate", {}, "missing a required argument: 'rate'"),
        ("any_options", {"what": 1}, ""),
    ],
)
def test_options_that_a_function_does_not_take_are_told_before_any_row(
    function: str, options: dict[str, Any], message: str
) -> None:
    node = PythonTransformConfig.model_validate(
        {"from": "s", "function": f"rates_of_ours.fx:{function}", "options": options}
    )
    settings = load_settings(python_transforms={"allow": ["rates_of_ours"]})
    if not message:
        check_function(node, settings, "n")
        return
    with pytest.raises(UserError) as caught:
        check_function(node, settings, "n")
    assert (
        caught.value.message
        == f"`rates_of_ours.fx:{function}` cannot be called with a batch and these `options`: {message}"
    )
    assert caught.value.hint.startswith(f"It is {function}(batch")


def test_only_the_settings_allow_a_module() -> None:
    with pytest.raises(UserError) as caught:
        check_allowed("rates_of_ours.fx:f", [], "n")
    assert (
        "the settings do not allow Python from `rates_of_ours.fx` (allowed: nothing)" in caught.value.message
    )
    assert "python_transforms: {allow: [rates_of_ours]}" in caught.value.hint
    assert "HEADRACE__PYTHON_TRANSFORMS__ALLOW=rates_of_ours." in caught.value.hint
    check_allowed("rates_of_ours.fx:f", ["other", "rates_of_ours"], "n")
    check_allowed("rates_of_ours:f", ["rates_of_ours"], "n")
    for other in (["rates_of_ours.fx.deeper"], ["rates"], ["rates_of_ours_too"]):
        with pytest.raises(UserError):
            check_allowed("rates_of_ours.fx:f", other, "n")


def test_the_setting_is_a_list_or_a_text_with_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings().python_transforms.allow == []
    monkeypatch.setenv("HEADRACE__PYTHON_TRANSFORMS__ALLOW", "rates_of_ours, other")
    assert load_settings().python_transforms.allow == ["rates_of_ours", "other"]
    monkeypatch.delenv("HEADRACE__PYTHON_TRANSFORMS__ALLOW")
    (tmp_path / "config.yaml").write_text("python_transforms: {allow: [rates_of_ours]}\n")
    assert load_settings().python_transforms.allow == ["rates_of_ours"]


@pytest.mark.parametrize("path", ["f", "a:b:c", "a.b", "a-b:c", "a:", ":f", "os.system('x'):f", "a:f()"])
def test_a_function_is_named_by_module_and_name(path: str) -> None:
    with pytest.raises(ValueError, match="function"):
        PythonTransformConfig.model_validate({"type": "python", "from": "s", "function": path})
