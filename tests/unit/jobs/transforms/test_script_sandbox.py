"""Hostile scripts: each ends within its limit, and later rows are unaffected."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.script_nodes import bare, rows, run

from headrace.jobs.transforms.script import process as vms
from headrace.jobs.transforms.script.process import ScriptLimits, ScriptProcess
from headrace.pipeline.errors import DataError, HeadraceError, UserError

GIVEN = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
PATIENCE = 20.0
"""Far above what a case needs, far below for ever."""


def ended(body: str, before: str = "", **options: Any) -> str:
    """The message that a script ends with at its second row."""
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        rows(f"{before}\nfunction process(r) {{ if (r.id === 1) return r; {body} }}", GIVEN, **options)
    assert time.monotonic() - started < PATIENCE
    assert caught.value.message.startswith("row id 2 (partition 7, offset 1): "), caught.value.message
    assert caught.value.node == "n"
    assert "Traceback" not in str(caught.value)
    return caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        "while (true);",
        "for (;;) { try { while (true); } catch (e) {} }",
        "(function f() { try { while (true); } finally { f() } })()",
        "[1, 2, 3].sort(() => { while (true); })",
        "return {get id() { while (true); }}",
        "return new Proxy({}, {get() { while (true); }})",
        "return new Proxy([], {get() { while (true); }})",
        "return {name: {toJSON() { while (true); }}}",
        "return {name: {toString() { while (true); }, get toJSON() { while (true); }}}",
        "for (const x of (function* () { while (true) yield 1; })());",
        "return /^(.*)*x/.test('a'.repeat(300000)) ? r : null",
        "JSON.parse('[1]', () => { while (true); })",
        "return [...Array(1e9).keys()].length ? r : null",
        "throw {get message() { while (true); }}",
        "throw new Proxy({}, {get() { while (true); }})",
        "eval('while (true);')",
        "new Function('while (true);')()",
        "Promise.resolve().then(() => 0); while (true);",
        "'a'.replace(/a/, () => { while (true); })",
        "return {id: {valueOf() { while (true); }, get [Symbol.toPrimitive]() { while (true); }} + 1}",
        "Array.prototype.indexOf.call({length: 2 ** 53 - 1}, 1)",
    ],
)
def test_time_is_limited(body: str) -> None:
    message = ended(body)
    assert "longer than its `timeout` of 300ms" in message or "memory_limit" in message


@pytest.mark.parametrize(
    "body", ["new Array(4294967295).join('')", "'a'.repeat(5e6).indexOf('a'.repeat(2e6) + 'b')"]
)
def test_time_is_limited_inside_of_native_code(body: str) -> None:
    message = ended(body)
    assert "timeout` of 300ms (it was in native code, which only the kernel can stop)" in message


def test_the_limit_is_for_one_call_and_not_for_all() -> None:
    source = "function process(r) { const end = Date.now() + 80; while (Date.now() < end); return r }"
    assert bare(source, [{"id": n} for n in range(8)], deterministic=False) == [{"id": n} for n in range(8)]


@pytest.mark.parametrize(
    "body",
    [
        "const a = []; while (true) a.push('x'.repeat(1e6) + a.length);",
        "return {name: 'x'.repeat(1e9)}",
        "const a = []; for (;;) a.push(new Uint8Array(1e6));",
        "let s = 'x'; for (;;) s += s;",
        "return JSON.parse('[' + '1,'.repeat(1e7) + '1]')",
        "return new Array(1e8).fill({})",
    ],
)
def test_memory_is_limited(body: str) -> None:
    message = ended(body, timeout="5s")
    assert "memory_limit` of 32 MiB" in message or "string too long" in message, message


def test_memory_that_is_caught_and_asked_for_again_ends_in_time() -> None:
    assert "timeout" in ended(
        "let a = []; for (;;) { try { a.push(new Uint8Array(1e6)) } catch (e) { a = [] } }"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return Array.from({length: 100001}, () => r)", "100001 rows of one, and 100000 are allowed"),
        ("return {name: 'x'.repeat(17 << 20)}", "longer than 16777216 characters"),
        (
            "const s = 'x'.repeat(1 << 20); return Array.from({length: 40}, () => ({name: s}))",
            "longer than 16777216 characters",
        ),
    ],
)
def test_what_comes_back_is_limited(body: str, message: str) -> None:
    assert message in ended(body, memory_limit="512MiB", timeout="20s")


def test_much_that_is_allowed_comes_in_pieces() -> None:
    result = run(
        "function process(r) { return {name: 'x'.repeat(1 << 20)} }",
        pa.table({"name": ["a"] * 24}),
        timeout="20s",
        memory_limit="64MiB",
    )
    assert [len(name) for name in result.column("name").to_pylist()] == [1 << 20] * 24


@pytest.mark.parametrize(
    "body",
    [
        "return (function f() { return f() + 1 })()",
        "let o = {}, x = o; for (let i = 0; i < 1e5; i++) { x.a = {}; x = x.a } return {name: o}",
        "return JSON.parse('['.repeat(1e6))",
        "return {name: (function f(n) { return [f(n + 1)] })(0)}",
        "const o = {}; o.o = o; return {name: o}",
        "return {get name() { return this.name }}",
    ],
)
def test_recursion_ends(body: str) -> None:
    message = ended(body)
    assert "call stack" in message or "circular" in message or "SyntaxError" in message, message


@pytest.mark.parametrize(
    "body",
    [
        "Object.prototype.name = 'bad'",
        "Array.prototype.map = () => ['bad']",
        "Array.prototype.push = () => 0",
        "JSON.stringify = () => 'bad'",
        "String.prototype.isWellFormed = () => true",
        "Object.prototype.toJSON = () => 'bad'",
        "Object.defineProperty(Object.prototype, 'id', {get() { return 7 }})",
        "Object.setPrototypeOf(Object.prototype, {id: 7})",
        "Object.setPrototypeOf(Array.prototype, null)",
        "Number.isSafeInteger = () => true",
        "RegExp.prototype.test = () => true",
        "globalThis.process = () => ({id: 7})",
        "process = () => ({id: 7})",
        "({}).__proto__.name = 'bad'",
        "(function* () {}).constructor.prototype.x = 1",
        "Reflect.ownKeys = 1",
        "Symbol.prototype.x = 1",
    ],
)
def test_the_world_of_a_script_cannot_be_changed(body: str) -> None:
    assert "TypeError" in ended(f"{body}; return r")
    quiet = f"function process(r) {{ try {{ {body} }} catch (e) {{}}; return r }}"
    assert bare(quiet, GIVEN) == GIVEN


def test_names_at_the_top_of_a_script_are_its_own() -> None:
    taken = "JSON,Array,Object,String,Number,BigInt,Math,Reflect,Uint8Array,RangeError,InternalError,TypeError,Error,Date,RegExp,globalThis"
    taken += ",Set,Map,Function,parse,columns,out,at,count,emit,encoders,process_"
    before = f"const bytes = new this.Uint8Array([255]), [{taken}] = '{taken}'.split(',').map(() => null);"
    schema = pa.schema(
        {
            "id": pa.int64(),
            "list": pa.list_(pa.int64()),
            "map": pa.map_(pa.string(), pa.int64()),
            "b": pa.binary(),
            "text": pa.string(),
        }
    )
    rows = [{"id": 2**53 + 1, "list": [1, 2**60], "map": [("k", 2**61)], "b": b"x", "text": "t"}] * 2
    table = pa.Table.from_pylist(rows, schema)
    result = run(f"{before} function process(r) {{ return {{...r, b: bytes, text: {{a: [1n]}}}} }}", table)
    assert result.select(schema.names).to_pylist() == [
        row | {"b": b"\xff", "text": '{"a":["1"]}'} for row in rows
    ]


@pytest.mark.parametrize(
    ("value", "column"),
    [
        ("new Proxy([], {get: (t, k) => k === 'length' ? 2 : '1]}\\n{\"v\":[1'})", "list"),
        (
            (
                "new (class extends Uint8Array { get length() { return 1 } *[Symbol.iterator]() { yield"
                " {toString: () => 'zz'} } })(0)"
            ),
            "b",
        ),
        ("{toJSON: () => '\\n'}", "list"),
    ],
)
def test_values_that_lie_about_themselves_stay_in_their_column(value: str, column: str) -> None:
    table = pa.Table.from_pylist(
        [{"id": 1}, {"id": 2}], pa.schema({"id": pa.int64(), "list": pa.list_(pa.int64()), "b": pa.binary()})
    )
    with pytest.raises(UserError) as caught:
        run(f"function process(r) {{ return {{id: r.id, {column}: {value}}} }}", table)
    assert f"`{column}`" in caught.value.message or "Error: " in caught.value.message


def test_methods_of_values_are_not_asked() -> None:
    table = pa.Table.from_pylist([{"id": 1}], pa.schema({"id": pa.int64(), "list": pa.list_(pa.int64())}))
    lying = "new (class extends Array { map() { return ['9'] } join() { return '9' } })(1, 2)"
    result = run(f"function process(r) {{ return {{id: r.id, list: {lying}}} }}", table)
    assert result.column("list").to_pylist() == [[1, 2]]


@pytest.mark.parametrize("length", ["1e9", "-1", "NaN", "1.5", "'2'", "2n", "{valueOf: () => 1e9}"])
def test_arrays_that_lie_about_their_length_are_refused(length: str) -> None:
    message = ended(f"return new Proxy([], {{get: (t, k) => k === 'length' ? {length} : r}})")
    assert "rows of one" in message or "TypeError" in message


def test_objects_of_a_script_may_have_names_of_built_ins() -> None:
    source = """
    class Odd extends Error { constructor(m) { super(m); this.name = 'Odd' } }
    function process(r) {
      const o = {};
      o.toString = () => 'mine';
      o.constructor = 1;
      try { throw new Odd('x') } catch (e) { return {name: `${e} ${o}`} }
    }
    """
    assert bare(source, GIVEN)[0]["name"] == "Odd: x mine"


def test_there_is_nothing_to_reach_outside() -> None:
    names = "require,fetch,std,os,print,module,exports,WebAssembly,setTimeout,XMLHttpRequest,Deno,Bun,scriptArgs,load,read,gc,__dirname,performance"
    source = (
        f"function process(r) {{ return {{name: '{names}'.split(',').filter((n) => n !== 'process' &&"
        f" n in globalThis).join()}} }}"
    )
    assert bare(source, GIVEN) == [{"id": None, "name": ""}] * 2
    assert "TypeError" in ended("import('fs').then(() => 0); return null.x")
    assert bare("function process(r) { console.log(r); console.error(r); return r }", GIVEN) == GIVEN


def test_nothing_is_left_for_the_next_script() -> None:
    limits = ScriptLimits(1.0, 32 << 20, 100)
    vms.end_idle()
    with vms.borrow_process(limits) as first:
        pass
    with vms.borrow_process(limits) as second:
        assert second is first, "the process is kept"
    source = "globalThis.leak = 'secret'; let hidden = 1; function process(r) { return r }"
    assert bare(source, GIVEN, deterministic=False) == GIVEN
    assert (
        bare("function process(r) { return {name: typeof leak + typeof hidden} }", GIVEN)[0]["name"]
        == "undefinedundefined"
    )


def test_after_a_hostile_script_the_next_one_works() -> None:
    ended("while (true);")
    assert bare("function process(r) { return r }", GIVEN) == GIVEN


@pytest.fixture
def vm() -> Any:
    """A process of its own."""
    made = ScriptProcess(ScriptLimits(1.0, 32 << 20, 100))
    yield made
    made.end()


def of(vm: ScriptProcess) -> Any:
    """What the system calls it."""
    return vm._process


def opened(vm: ScriptProcess) -> None:
    """A script is loaded."""
    shape = (
        '{"inputs": [{"name": "id"}, {"name": "_gs_op"}], "outputs": [{"name": "id", "as": "string",'
        ' "spelling": "string"}]}'
    )
    vm.open(vms.Program("function process(r) { return r }", shape, deterministic=True, fixed=0))


@pytest.mark.skipif(
    not Path("/proc/self/limits").exists(), reason="limits of a process can be read on Linux alone"
)
def test_the_process_has_no_secrets_no_files_and_little_memory(
    vm: ScriptProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(vm)
    place = Path(f"/proc/{of(vm).pid}")
    assert b"PATH" not in place.joinpath("environ").read_bytes()
    limits = {
        line[:26].strip(): line[26:].split()[:2]
        for line in place.joinpath("limits").read_text().splitlines()[1:]
    }
    assert limits["Max open files"] == ["0", "0"]
    assert limits["Max file size"] == ["0", "0"]
    assert limits["Max processes"] == ["0", "0"]
    assert int(limits["Max address space"][0]) < 1 << 30
    assert sorted(os.readlink(one).split(":")[0] for one in place.joinpath("fd").iterdir()) == [
        "/dev/null",
        "pipe",
        "pipe",
    ]


def test_a_process_that_stands_still_is_ended(vm: ScriptProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(vm)
    monkeypatch.setattr(vms, "_PATIENCE_S", -1.5)
    of(vm).send_signal(signal.SIGSTOP)
    with pytest.raises(vms.StoppedError, match="no sign of life"):
        list(vm.rows('[[["1"],["i"]],[]]'))
    assert of(vm).wait(5) == -signal.SIGKILL


def test_many_rows_that_take_long_together_are_no_silence(
    vm: ScriptProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "function process(r) { const began = Date.now(); while (Date.now() - began < 25); return r }"
    shape = (
        '{"inputs": [{"name": "id"}, {"name": "_gs_op"}], "outputs": [{"name": "id", "as": "string",'
        ' "spelling": "string"}]}'
    )
    vm.open(vms.Program(slow, shape, deterministic=False, fixed=0))
    heads: list[bytes] = []
    read = vm._read
    monkeypatch.setattr(
        ScriptProcess, "_read", lambda _, size, row: heads.append(result := read(size, row)) or result
    )
    assert len(list(vm.rows('[[["1","2","3"],["i","i","i"]],[]]'))) == 1
    assert [head[:1] for head in heads if len(head) == 5] == [b"a", b"a", b"r", b"d"]


def test_a_process_that_is_killed_is_told(vm: ScriptProcess) -> None:
    opened(vm)
    of(vm).kill()
    with pytest.raises(vms.StoppedError, match="SIGKILL"):
        list(vm.rows('[[["1"],["i"]],[]]'))


def test_a_process_ends_with_its_parent(vm: ScriptProcess) -> None:
    opened(vm)
    of(vm).stdin.close()
    assert of(vm).wait(5) == 0


def test_limits_of_a_script_hold_while_it_loads() -> None:
    for top, message in (
        ("while (true);", "timeout"),
        ("const a = []; for (;;) a.push(new Uint8Array(1e6));", "memory"),
    ):
        with pytest.raises(HeadraceError, match=message) as caught:
            rows(f"{top} function process(r) {{ return r }}", GIVEN)
        assert not isinstance(caught.value, AssertionError)
    with pytest.raises(DataError):
        rows("let n = 0; function process(r) { return {id: n++} }", GIVEN)
