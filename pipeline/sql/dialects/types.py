"""Arrow's type names, as DataFusion's arrow_cast and CAST accept them, as Spark SQL types."""

from __future__ import annotations

from sqlglot import exp

ARROW_TYPES = {
    "utf8": "STRING", "largeutf8": "STRING", "utf8view": "STRING", "boolean": "BOOLEAN", "int8": "TINYINT",
    "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "uint8": "SMALLINT", "uint16": "INT",
    "uint32": "BIGINT", "uint64": "DECIMAL(20, 0)", "float32": "FLOAT", "float64": "DOUBLE", "date32": "DATE",
    "date64": "TIMESTAMP", "binary": "BINARY", "largebinary": "BINARY", "int128": "DECIMAL(38, 0)",
    "uint128": "DECIMAL(38, 0)",
}  # fmt: skip


def arrow_type(name: str) -> exp.DataType | None:
    """Return Spark's type for a name of arrow_cast.

    Examples: Int64, Timestamp(Microsecond, None), Decimal128(10, 2).
    """
    word, _, arguments = name.strip().rstrip(")").partition("(")
    word = word.strip().lower()
    if word in ("decimal128", "decimal256", "decimal"):
        return exp.DataType.build(f"DECIMAL({arguments})", dialect="spark")
    if word == "timestamp":
        return exp.DataType.build("TIMESTAMP", dialect="spark")
    known = ARROW_TYPES.get(word)
    return exp.DataType.build(known, dialect="spark") if known else None
