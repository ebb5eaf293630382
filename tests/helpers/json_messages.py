"""JSON messages for tests of decoders: plain ones, and odd ones of many kinds."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from headrace.connectors.kafka.message_batch import MessageBatch

SCHEMA = {
    "small": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "byte": "uint8",
    "word": "uint32",
    "huge": "uint64",
    "ratio": "float64",
    "flag": "boolean",
    "name": "string",
    "price": "decimal(10, 2)",
    "exact": "decimal(38, 9)",
    "day": "date32",
    "at": "timestamp",
}
NUMBERS = (
    *(
        "0",
        "-0",
        "1",
        "-1",
        "1.0",
        "1e3",
        "1E-2",
        "0.1",
        "1.25",
        "1.250",
        "1.255",
        "12345678.99",
        "123456789.99",
    ),
    *("127", "128", "-128", "-129", "255", "256", "65535", "65536", "2147483647", "2147483648", "4294967295"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "-0.0"),
    *(
        "1e400",
        "1e-400",
        "5e-324",
        "1.7976931348623157e308",
        "0.30000000000000004",
        "123456789012345678901234567890",
    ),
    *(
        "1" * 39,
        "0." + "0" * 45 + "1",
        "0." + "1" * 9,
        "0." + "1" * 10,
        "1" * 29 + ".5",
        "1" * 1001,
        "0e-50",
        "1e-9",
    ),
    *("NaN", "Infinity", "-Infinity", "Inf", "+1", "01", ".5", "1.", "0x1", "1e", "-"),
)
TEXTS = (
    *(
        "",
        "a",
        "1",
        "1.5",
        "1,5",
        " 1",
        "1e2",
        "+1",
        ".5",
        "1.",
        "-0.00",
        "NaN",
        "true",
        "null",
        "İ",
        "ä",
        "\0",
        "\t",
    ),
    *(
        '{"a": 1.50}',
        "[1.50, 2]",
        "0" * 40,
        "2024-02-29",
        "2023-02-29",
        "2024-1-1",
        "0000-01-01",
        "0001-01-01",
    ),
    *(
        "1582-10-10",
        "9999-12-31",
        "10000-01-01",
        "2024-02-29 12:30:00",
        "2024-02-29T12:30:00Z",
        "2024-02-29T12:30",
    ),
    *(
        "2024-02-29T12:30:00.1Z",
        "2024-02-29T12:30:00.123456Z",
        "2024-02-29T12:30:00.1234567Z",
        "1969-12-31T23:59:59.9Z",
    ),
    *(
        "2024-02-29T12:30:00+01:00",
        "2024-02-29T12:30:00.123456",
        "2024-02-29T24:00:00Z",
        "2024-02-29T23:59:60Z",
    ),
    *(
        "1582-10-10T00:00:00Z",
        "1000-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "12:30",
        "today",
        "2024-02-29Z",
    ),
    *(
        "2024-02-29T12:30:00 Z",
        "2024-02-29T12:30:00z",
        "2024-02-29\n",
        "2024-02-29T12:30:00Z\n",
        "\uff12024-02-29",
    ),
)
ODD = (
    *(
        "true",
        "false",
        "null",
        "{}",
        "[]",
        '{"b": 1.50}',
        "[1, 2.50]",
        '"\\ud83d\\ude00"',
        '"\\ud83d"',
        '"\\x"',
        '"\t"',
    ),
    *(
        "[" * 1001 + "]" * 1001,
        '{"a":' * 300 + "1" + "}" * 300,
        "tru",
        "nan",
        "'a'",
        "",
        "/*c*/1",
        '"\\/"',
        '"\\\\ud83d"',
    ),
)
PLAIN: dict[str, tuple[object, ...]] = {
    "small": (1, -128, 127),
    "short": (-32768, 5),
    "int": (2147483647, 0),
    "long": (-9223372036854775808, 7),
    "byte": (255, 0),
    "word": (4294967295, 1),
    "huge": (18446744073709551615, 2),
    "ratio": (0.1, -0.0, 1e300, 3),
    "flag": (True, False),
    "name": ("Zoë", "\U0001f600", "a\nb", ""),
    "price": (1.25, "1.25", 3, "-0.5"),
    "exact": (12345678901234567890, "0.000000001"),
    "day": ("2024-02-29", "1999-12-31"),
    "at": ("2024-02-29T12:30:00Z", "2024-02-29T12:30:00.123456Z"),
}

fragments = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS).flatmap(
        lambda text: st.sampled_from([json.dumps(text), json.dumps(text, ensure_ascii=False)])
    ),
    st.sampled_from(ODD),
    st.integers().map(str),
    st.floats().map(json.dumps),
    st.text().map(json.dumps),
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A JSON object of plain values, in most cases with something odd in one place."""
    fields = {
        name: json.dumps(draw(st.sampled_from(values)), ensure_ascii=draw(st.booleans()))
        for name, values in PLAIN.items()
        if draw(st.integers(0, 3))
    }
    pairs = [(json.dumps(name), value) for name, value in fields.items()]
    odd = draw(st.integers(0, 8))
    if odd in (0, 1, 2):
        pairs.append((json.dumps(draw(st.sampled_from(sorted(SCHEMA)))), draw(fragments)))
        names = [name for name, _ in pairs]
        if odd:
            pairs = [pair for at, pair in enumerate(pairs) if pair[0] not in names[at + 1 :]]
    elif odd == 3:
        pairs.append(
            (draw(st.sampled_from(['"other"', '"LONG"', '"\\u006cong"', '""', "long"])), draw(fragments))
        )
    pairs = draw(st.permutations(pairs))
    space = draw(st.sampled_from(["", " ", "\n", "\r\n", "\t", "\f"])) if odd == 4 else ""
    text = "{" + ",".join(f"{space}{name}:{space}{value}{space}" for name, value in pairs) + "}"
    if odd == 5:
        text = draw(
            st.sampled_from(
                [" {}", "{} ", "{}{{}}", "{}\n{{}}", "{},", '{},"e":2', "[{}]", "\ufeff{}", "{}}}", "{}x"]
            )
        ).format(text)
    raw = text.encode(errors="surrogatepass")
    if odd == 6 and raw:
        at = draw(st.integers(0, len(raw) - 1))
        raw = (
            raw[:at]
            + draw(st.sampled_from([b"", b"\xff", b"\xed\xa0\x80", b"\x00", b"\n", b'"', b"{", b"}"]))
            + raw[at + 1 :]
        )
    return raw


operations = st.sampled_from([None, None, None, "c", "U", "d", "R", "x", "", "İ", " d"])


def batch_of(values: list[bytes | None], texts: list[str | None]) -> MessageBatch:
    count = len(values)
    return MessageBatch(
        values,
        [at % 3 for at in range(count)],
        list(range(count)),
        [1_700_000_000_123 + at for at in range(count)],
        texts,
    )
