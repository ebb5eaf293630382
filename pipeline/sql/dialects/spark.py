"""Spark's SQL as sqlglot reads and writes it here."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot.dialects.spark import Spark

from headrace.pipeline import functions


class HeadraceSpark(Spark):
    """Spark 4's SQL. The library reads 'It''s' as two literals side by side, so that the quote would be lost without a word."""

    class Tokenizer(Spark.Tokenizer):
        """A doubled quote inside a literal is one quote."""

        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(Spark.Parser):
        """The names of our own functions stay as they are written."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {**Spark.Parser.FUNCTIONS, **functions.parsed_names("spark")}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = functions.with_clauses(Spark.Parser.FUNCTION_PARSERS)


DIALECT = HeadraceSpark
