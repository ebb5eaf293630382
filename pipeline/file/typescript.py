"""Turns TypeScript into JavaScript by blanking the types, so that lines and columns stay the same.

Everything that TypeScript adds beyond types, such as enums, is refused, because this is not a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.pipeline.errors import FileLocation, UserError

if TYPE_CHECKING:
    from tree_sitter import Node

_TYPES = frozenset(
    {
        "type_annotation",
        "type_parameters",
        "type_arguments",
        "type_predicate_annotation",
        "asserts_annotation",
        "implements_clause",
        "override_modifier",
        "opting_type_annotation",
        "omitting_type_annotation",
        "adding_type_annotation",
    }
)
"""Parts of a statement that are only types."""
_STATEMENTS = frozenset(
    {
        "interface_declaration",
        "type_alias_declaration",
        "ambient_declaration",
        "function_signature",
        "abstract_method_signature",
        "method_signature",
        "index_signature",
    }
)
"""Statements and members of a class that are only types."""
_REFUSED = {
    "enum_declaration": ("an enum", "Write an object: const Color = {Red: 'red'} as const."),
    "internal_module": ("a namespace", "Write an object, or plain functions."),
    "module": ("a module", "Write an object, or plain functions."),
    "decorator": ("a decorator", "Call the function directly."),
    "import_alias": ("`import =`", "Write the name itself, or a constant for it."),
    "import_statement": (
        "an import",
        "Nothing can be imported: put what you need into the script. `import type` is fine.",
    ),
}
_MODIFIERS = frozenset({"accessibility_modifier", "readonly", "abstract", "declare", "override"})
_MEMBERS = frozenset({"public_field_definition", "method_definition", "abstract_class_declaration"})
_ENDS = frozenset(
    {
        "expression_statement",
        "lexical_declaration",
        "variable_declaration",
        "return_statement",
        "throw_statement",
        "public_field_definition",
    }
)
_CALLS = frozenset({"call_expression", "subscript_expression", "member_expression"})
_NEEDS = "pip install 'headrace[transforms]'"


def javascript(text: str, *, node: str = "", at: FileLocation | None = None) -> str:
    """Return the same program without its types. `at` is the location of its first line.

    Raise UserError, with line and column, for a construct beyond types and for a syntax error. Also raise it
    if the parser's package is missing.
    """
    strip = _Strip(text.encode(), node, at)
    strip.visit(_tree(text, node))
    return strip.text()


def _tree(text: str, node: str, *, jsx: bool = False) -> Node:
    try:
        import tree_sitter
        import tree_sitter_typescript as grammar
    except ImportError as error:
        msg = f"`language: typescript` needs the package `{error.name}`"
        raise UserError(msg, hint=_NEEDS, node=node) from error
    language = tree_sitter.Language(grammar.language_tsx() if jsx else grammar.language_typescript())
    return tree_sitter.Parser(language).parse(text.encode()).root_node


@dataclass(slots=True)
class _Strip:
    """One program during the work.

    `blanks` are byte ranges to blank, each with the character that replaces its first.
    """

    source: bytes
    node: str
    at: FileLocation | None
    blanks: list[tuple[int, int, str]] = field(default_factory=list)

    def text(self) -> str:
        """Return the program with the ranges blanked."""
        parts: list[str] = []
        end = 0
        for start, stop, first in sorted(self.blanks):
            if start < end:
                continue
            parts.append(self.source[end:start].decode())
            blank = re.sub(r"[^\r\n]", " ", self.source[start:stop].decode())
            parts.append(first + blank[1:] if first else blank)
            end = stop
        return "".join([*parts, self.source[end:].decode()])

    def visit(self, root: Node) -> None:
        """Add the ranges below a node. The traversal is iterative, because long expressions nest deeply."""
        if root.has_error:
            raise self._parse_error(root)
        open_ = [root]
        while open_:
            at = open_.pop()
            if at.type in _TYPES or at.type in _STATEMENTS:
                self._bracket(at)
                self._type(at)
                continue
            if at.type == "export_statement":
                open_ += self._export(at)
                continue
            if at.type == "import_statement" and any(child.type == "type" for child in at.children):
                self._blank(at, ";")
                continue
            if at.type in _REFUSED:
                what, hint = _REFUSED[at.type]
                raise self._syntax_error(at, what, hint)
            self._tokens(at)
            open_ += at.children

    def _type(self, at: Node) -> None:
        """Blank a type or statement. A semicolon keeps the code before it apart from the code after it."""
        if (
            at.parent is not None
            and at.parent.type == "arrow_function"
            and at.end_point.row != at.start_point.row
        ):
            raise self._syntax_error(
                at,
                "a return type of several lines before `=>`",
                "Give the type a name above, or write it on one line.",
            )
        self._blank(at, ";" if at.type in _STATEMENTS else "")

    def _bracket(self, at: Node) -> None:
        """Refuse a `[` on a new line after a type.

        It begins a statement in TypeScript, but not for this parser.
        """
        open_ = [at]
        while open_:
            inner = open_.pop()
            if (
                inner.type in ("lookup_type", "array_type")
                and b"\n" in self.source[inner.children[0].end_byte : inner.children[1].start_byte]
            ):
                hint = "Put a semicolon at the end of the line before, or the bracket on it."
                raise self._syntax_error(inner.children[1], "a `[` on a new line after a type", hint)
            open_ += inner.children

    def _tokens(self, at: Node) -> None:
        """Add the ranges of a node whose other parts stay."""
        children = at.children
        if at.type in ("as_expression", "satisfies_expression"):
            self._bracket(at.children[-1])
            self._behind(at, children[0])
        elif at.type == "non_null_expression":
            self._blank(children[-1])
        elif at.type == "type_assertion":
            if self.source[children[0].end_byte :].lstrip().startswith(b"{"):
                raise self._syntax_error(at, "`<T>{...}`", "Write `{...} as T`.")
        elif at.type in ("required_parameter", "optional_parameter"):
            self._parameter(at)
        elif at.type == "variable_declarator":
            self._blank_all(child for child in children if child.type == "!")
        elif at.type in _MEMBERS or at.type == "class":
            self._member(at)

    def _behind(self, at: Node, expression: Node) -> None:
        """Reduce `x as T` to x.

        If a statement without a semicolon ends there, keep it apart from the code after it.
        """
        up = at.parent
        while up is not None and up.end_byte == at.end_byte and up.type not in _ENDS:
            up = up.parent
        last = up is not None and up.end_byte == at.end_byte and up.type in _ENDS
        # TypeScript ends the statement before a bracket on the next line. This parser reads a call instead.
        last = last or (at.parent is not None and at.parent.type in _CALLS and at.parent.children[0] == at)
        self.blanks.append((expression.end_byte, at.end_byte, ";" if last else ""))

    def _parameter(self, at: Node) -> None:
        first = at.children[0]
        if first.type in ("accessibility_modifier", "override_modifier") or any(
            child.type == "readonly" for child in at.children
        ):
            raise self._syntax_error(
                at,
                "a parameter property",
                "Declare the field in the class, and assign it in the constructor.",
            )
        if any(child.type == "this" for child in at.children):
            behind = at.next_sibling
            self.blanks.append(
                (
                    at.start_byte,
                    behind.end_byte if behind is not None and behind.type == "," else at.end_byte,
                    "",
                )
            )
        self._blank_all(child for child in at.children if child.type == "?")

    def _member(self, at: Node) -> None:
        children = at.children
        if any(child.type == "declare" for child in children) or any(
            child.type == "abstract" for child in children if at.type == "public_field_definition"
        ):
            self._blank(at, ";")
            return
        for index, child in enumerate(children):
            if child.type in _MODIFIERS:
                # A field above without a semicolon would include `[x]` or `*x` without the modifier.
                self._blank(
                    child,
                    ";" if index == 0 and at.type in ("public_field_definition", "method_definition") else "",
                )
            if child.type in ("?", "!"):
                self._blank(child)

    def _export(self, at: Node) -> list[Node]:
        """Blank the `export` of a declaration, because no other module imports a script."""
        kinds = [child.type for child in at.children]
        declared = at.child_by_field_name("declaration")
        if declared is not None:
            if declared.type in _STATEMENTS:
                self._blank(at, ";")
                return []
            self.blanks.append((at.start_byte, declared.start_byte, ""))
            return [declared]
        if "type" in kinds or ("export_clause" in kinds and at.child_by_field_name("source") is None):
            self._blank(at, ";")
            return []
        raise self._syntax_error(
            at, "this kind of export", "Declare `function process(input)`; scripts are not imported."
        )

    def _blank(self, at: Node, first: str = "") -> None:
        self.blanks.append((at.start_byte, at.end_byte, first))

    def _blank_all(self, nodes: Iterator[Node]) -> None:
        for at in nodes:
            self._blank(at)

    def _syntax_error(self, at: Node, what: str, hint: str) -> UserError:
        line, place = self._where(at)
        msg = f"{what} is more than types, which are all that is taken out of TypeScript ({line})"
        return UserError(msg, hint=hint, node=self.node, place=place)

    def _parse_error(self, root: Node) -> UserError:
        wrong = _first_wrong(root)
        line, place = self._where(wrong)
        tsx = _tree(self.source.decode(), self.node, jsx=True)
        if not tsx.has_error:
            msg, hint = (
                f"JSX is more than types, which are all that is taken out of TypeScript ({line})",
                "Write plain calls.",
            )
        else:
            near = self.source[wrong.start_byte :].decode(errors="replace").strip().split("\n")[0][:40]
            msg = (
                f"this is no TypeScript that can be parsed, {f'near `{near}`' if near else 'at its end'}"
                f" ({line})"
            )
            hint = "Correct the script; brackets and quotes that are opened must be closed."
        return UserError(msg, hint=hint, node=self.node, place=place)

    def _where(self, at: Node) -> tuple[str, FileLocation | None]:
        row = at.start_point.row
        column = len(self.source[: at.start_byte].decode().rpartition("\n")[2])
        line = f"line {row + 1}, column {column + 1} of the script"
        if self.at is None or self.at.line is None:
            return line, self.at
        return line, FileLocation(self.at.file, self.at.line + row, (self.at.column or 1) + column)


def _first_wrong(root: Node) -> Node:
    """Return the innermost first part that could not be parsed."""
    at = root
    while True:
        inner = next((child for child in at.children if child.has_error or child.is_missing), None)
        if inner is None or at.is_error:
            return at
        at = inner
