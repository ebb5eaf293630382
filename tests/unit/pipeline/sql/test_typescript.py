"""TypeScript without its types: removed and kept syntax, and refused syntax."""

from __future__ import annotations

import re

import pytest

from headrace.pipeline.errors import FileLocation, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.file.typescript import javascript


@pytest.mark.parametrize(
    ("typescript", "left"),
    [
        ("let a: number = 1", "let a = 1"),
        ("let a!: number", "let a"),
        ("const f = (a: string, b?: number): boolean => true", "const f = (a, b) => true"),
        ("function f<T extends {a: 1}>(x: T, ...y: T[]): T { return x }", "function f(x, ...y) { return x }"),
        ("function f(this: Window, a: number) {}", "function f( a) {}"),
        ("function f(this: Window) {}", "function f() {}"),
        ("function f({a, b}: {a: number, b: string} = x) {}", "function f({a, b} = x) {}"),
        ("function f(x: string): string; function f(x: any) { return x }", "; function f(x) { return x }"),
        ("function isText(x: unknown): x is string { return true }", "function isText(x) { return true }"),
        ("function check(x: unknown): asserts x is string {}", "function check(x) {}"),
        ("interface A { x: number; y(): void }", ";"),
        ("interface A extends B, C<D> {}", ";"),
        ("type A = {[K in keyof B]?: B[K]} | `a${string}` | (() => void)", ";"),
        ("declare const x: number; declare function f(): void", ";;"),
        ("declare global { interface X {} }", ";"),
        ("import type { A } from 'a'", ";"),
        ("export type { A }", ";"),
        ("export interface A {}", ";"),
        ("export function process(x: A) { return x }", "function process(x) { return x }"),
        ("export { process }", ";"),
        ("const x = y as string", "const x = y;"),
        ("f(y as unknown as string, z as const)", "f(y, z)"),
        ("const x = {a: 1} satisfies A", "const x = {a: 1};"),
        ("const x = <string>y", "const x = y"),
        ("const x = y!.a![0]!", "const x = y.a[0]"),
        ("const m = new Map<string, Array<number>>()", "const m = new Map()"),
        ("f<string>(x); const g = f<number>", "f(x); const g = f"),
        ("class A<T> extends B<T> implements C, D<T> {}", "class A extends B {}"),
        ("abstract class A { abstract f(): void; abstract x: number; g() {} }", "class A { ;; ;; g() {} }"),
        (
            "class A { private x: number = 1; public readonly y?: string; protected static z!: T }",
            "class A { ; x = 1; ; y; ; static z }",
        ),
        ("class A { declare x: number; [k: string]: any; f?(): void }", "class A { ;; ;; ; }"),
        (
            (
                "class A { constructor(a: string) {} private get x(): number { return 1 } override f(): void {}"
                " }"
            ),
            None,
        ),
        ("class A { f(x: string): string; f(x: any) { return x } }", None),
        ("let x: typeof y, z: keyof T, u: unique symbol, w: A[0]['b'][]", "let x, z, u, w"),
        ("for (const x of y as string[]) {}", "for (const x of y) {}"),
        ("try {} catch (e: unknown) {}", "try {} catch (e) {}"),
        ("const x = a < b && c > d", "const x = a < b && c > d"),
        ("const x = a ? (b) : c => d", "const x = a ? (b) : c => d"),
        ("label: for (;;) { break label }", "label: for (;;) { break label }"),
        (
            "const x = {a: 1, 'type': 2, interface: 3, as: 4}.as",
            "const x = {a: 1, 'type': 2, interface: 3, as: 4}.as",
        ),
        ("let type = 1; type = 2; const of = type", "let type = 1; type = 2; const of = type"),
    ],
)
def test_types_go_and_nothing_moves(typescript: str, left: str | None) -> None:
    result = javascript(typescript)
    assert len(result) == len(typescript)
    if left is not None:
        assert re.sub(r"\s+", " ", result).replace(" ;", ";").strip().replace(" ", "") == left.replace(
            " ", ""
        )
    _runs(result)


def _runs(source: str) -> None:
    """The engine reads it; what it says of names that are not there is no matter."""
    import quickjs

    try:
        quickjs.Context().eval(f"(function () {{\n{source}\n}})")
    except quickjs.JSException as error:
        raise AssertionError(f"{source}\n{error}") from None


def test_lines_and_columns_stay_beside_letters_of_several_bytes() -> None:
    typescript = "const a: 'é😀' = 'é😀' as 'é😀'\ninterface X {\n  y: number\n}\n  const b: number = 2"
    result = javascript(typescript)
    assert result.split("\n")[0].rstrip() == "const a       = 'é😀';"
    assert [line.strip() for line in result.split("\n")[1:4]] == [";", "", ""]
    assert result.split("\n")[4].index("= 2") == typescript.split("\n")[4].index("= 2")


@pytest.mark.parametrize(
    ("typescript", "value"),
    [
        ("let r = 1\nconst f = (x: any) => { r = 7 }\nconst a = f as any\n(r = 2)\nr", 2),
        ("let r = 1\nconst f = (x) => { r = 7 }\ntype A = string\n(r = 3)\nr", 3),
        ("let r = 1\nconst o = {}\ninterface A {}\n[1].forEach(() => { r = 4 })\nr", 4),
        ("class A {\n  x = 1\n  private *[Symbol.iterator]() { yield 5 }\n}\n;[...new A()][0]", 5),
        ("class A {\n  x = 1\n  public ['y'] = 6\n}\n;new A().y", 6),
    ],
)
def test_statements_do_not_run_on_into_the_next_line(typescript: str, value: int) -> None:
    import quickjs

    assert quickjs.Context().eval(javascript(typescript)) == value


@pytest.mark.parametrize(
    ("typescript", "message", "at"),
    [
        ("let a = 1\n  enum A { B }", "an enum", (2, 3)),
        ("const enum A { B }", "an enum", (1, 1)),
        ("namespace N { export const x = 1 }", "a namespace", (1, 1)),
        ("class A { constructor(private x: number) {} }", "a parameter property", (1, 23)),
        ("class A { constructor(readonly x: number) {} }", "a parameter property", (1, 23)),
        ("@d class A {}", "a decorator", (1, 1)),
        ("class A { @d x = 1 }", "a decorator", (1, 11)),
        ("import fs = require('fs')", "an import", (1, 1)),
        ("import fs from 'fs'", "an import", (1, 1)),
        ("export = x", "this kind of export", (1, 1)),
        ("export default (x) => x", "this kind of export", (1, 1)),
        ("export * from 'x'", "this kind of export", (1, 1)),
        ("const x = <b>bold</b>", "JSX", None),
        ("const f = () => <A>{}", "`<T>{...}`", None),
        ("const f = (): {\n a: 1 } => x", "a return type of several lines", (1, 13)),
        ("const a = f() as X\n[1].map(g)", "a `[` on a new line", (2, 1)),
        ("let a: = 3", "no TypeScript that can be parsed", None),
        ("function f( {", "no TypeScript that can be parsed", None),
    ],
)
def test_what_is_more_than_types_is_refused_with_its_place(
    typescript: str, message: str, at: tuple[int, int] | None
) -> None:
    with pytest.raises(UserError) as caught:
        javascript(typescript, node="n", at=FileLocation("f.yaml", 10, 7))
    assert message in caught.value.message
    assert caught.value.hint
    assert caught.value.node == "n"
    if at is not None:
        assert f"line {at[0]}, column {at[1]} of the script" in caught.value.message
        assert caught.value.place == FileLocation("f.yaml", 9 + at[0], 6 + at[1])


def test_a_pipeline_file_with_such_a_script_is_refused_when_it_is_read(tmp_path) -> None:
    text = """
version: 1
sources:
  s: {type: kafka, topic: t, schema: {id: int64}}
transforms:
  n:
    type: script
    from: s
    language: ts
    script: |
      function process(r: any) { return r }
      enum Color { Red }
sinks:
  o: {type: blackhole, from: n}
"""
    (tmp_path / "p.yaml").write_text(text)
    from headrace.pipeline.file.loader import load_pipeline

    with pytest.raises(UserError) as caught:
        load_pipeline(tmp_path / "p.yaml")
    assert f"{tmp_path}/p.yaml:12:7: node 'n': an enum" in str(caught.value)
    with pytest.raises(UserError, match=r"<text>:10:5: node 'n': an enum .*line 2, column 1 of the script"):
        parse_pipeline(text)
