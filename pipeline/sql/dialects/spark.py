"""Spark's SQL, as Headrace configures it for sqlglot."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot.dialects.spark import Spark

from headrace.pipeline import functions


class HeadraceSpark(Spark):
    """Spark 4's SQL. sqlglot reads 'It''s' as two adjacent literals, which would silently lose the quote."""

    class Tokenizer(Spark.Tokenizer):
        """A doubled quote inside a literal is one quote."""

        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(Spark.Parser):
        """Keeps the names of Headrace's functions as they are written."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {**Spark.Parser.FUNCTIONS, **functions.parsed_names("spark")}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = functions.with_clauses(Spark.Parser.FUNCTION_PARSERS)


DIALECT = HeadraceSpark
