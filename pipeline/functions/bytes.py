"""Hashes, and bytes as strings."""

from __future__ import annotations

from headrace.pipeline.functions.registry import DialectScope, Function, Group

_BASES = "headrace.jobs.functions.base_encoding"
_TURNED = ", ".join(f"substring(_1, {place}, 1)" for place in range(32, 0, -1))

FUNCTIONS = (
    Function(
        name="_gs_keccak256",
        signature="_gs_keccak256(text)",
        group=Group.BYTES,
        result="text",
        arrow="headrace.jobs.functions.hashes:keccak256",
        meaning=(
            "Keccak-256 as Ethereum uses it, as 0x and 64 hexadecimal digits. Text of 0x and whole bytes in"
            " hexadecimal is "
            "hashed as those bytes. It needs the package `pycryptodome` (extra `transforms`)."
        ),
        examples=(
            ("_gs_keccak256('')", "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
            (
                "_gs_keccak256('Transfer(address,address,uint256)')",
                "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef",
            ),
            ("_gs_keccak256('0x616263') = _gs_keccak256('abc')", "true"),
            ("_gs_keccak256('0xabc') = _gs_keccak256('0xabc0')", "false"),
            ("_gs_keccak256(NULL)", "NULL"),
        ),
    ),
    Function(
        name="_gs_xxhash",
        signature="_gs_xxhash(text)",
        group=Group.BYTES,
        result="text",
        arrow="headrace.jobs.functions.hashes:xxhash",
        meaning="XXH3 with 128 bits, as 32 hexadecimal digits. It needs the package `xxhash` (extra"
        " `transforms`).",
        examples=(
            ("_gs_xxhash('')", "99aa06d3014798d86001c324468d497f"),
            ("_gs_xxhash('abc')", "06b05ab6733a618578af5f94892f3950"),
            ("_gs_xxhash(NULL)", "NULL"),
        ),
    ),
    Function(
        name="_gs_conv_base",
        signature="_gs_conv_base(number, from, to)",
        group=Group.BYTES,
        result="text",
        arrow=f"{_BASES}:conv_base",
        least=3,
        most=3,
        meaning="A number of any size written in another base, from 2 to 36, in small letters. NULL for"
        " what is no number of its base.",
        examples=(
            ("_gs_conv_base('ff', '16', '10')", "255"),
            ("_gs_conv_base('255', '10', '36')", "73"),
            ("_gs_conv_base('-10', '2', '16')", "-2"),
            ("_gs_conv_base('12', '2', '10')", "NULL"),
            ("_gs_conv_base('1', '1', '10')", "NULL"),
            ("_gs_conv_base('1_0', '10', '2')", "NULL"),
            ("_gs_conv_base('٣', '10', '2')", "NULL"),
            ("_gs_conv_base('', '10', '2')", "NULL"),
            ("_gs_conv_base(NULL, '10', '2')", "NULL"),
            (f"_gs_conv_base('{'f' * 64}', '16', '10')", str(2**256 - 1)),
        ),
    ),
    Function(
        name="to_base58",
        signature="to_base58(bytes)",
        group=Group.BYTES,
        result="text",
        arrow=f"{_BASES}:to_base58",
        meaning="Bytes in base 58, as Bitcoin and Solana write them.",
        examples=(
            ("to_base58(X'0000287fb4cd')", "11233QC4"),
            ("to_base58(CAST('Hello World!' AS BINARY))", "2NEpo7TZRRrLZSi2U"),
            ("to_base58(X'')", ""),
            ("to_base58(NULL)", "NULL"),
        ),
    ),
    Function(
        name="_gs_from_base58",
        signature="_gs_from_base58(text)",
        group=Group.BYTES,
        result="bytes",
        arrow=f"{_BASES}:from_base58",
        returns="binary",
        meaning="The bytes that base 58 stands for; empty bytes for NULL and for what is no base 58.",
        examples=(
            ("hex(_gs_from_base58('11233QC4'))", "0000287FB4CD"),
            ("hex(_gs_from_base58('0OIl'))", ""),
            ("hex(_gs_from_base58(NULL))", ""),
        ),
    ),
    Function(
        name="_gs_hex_to_byte",
        signature="_gs_hex_to_byte(text)",
        group=Group.BYTES,
        result="bytes",
        sql="coalesce(unhex(CASE WHEN length(_1) % 2 = 0 THEN CASE WHEN startswith(_1, '0x') THEN"
        " substr(_1, 3) ELSE _1 END END), unhex(''))",
        meaning="The bytes that hexadecimal digits stand for, with or without 0x; empty bytes for NULL and"
        " for what is no whole bytes.",
        examples=(
            ("hex(_gs_hex_to_byte('0x00ff'))", "00FF"),
            ("hex(_gs_hex_to_byte('abcd'))", "ABCD"),
            ("hex(_gs_hex_to_byte('abc'))", ""),
            ("hex(_gs_hex_to_byte('zz'))", ""),
            ("hex(_gs_hex_to_byte(''))", ""),
            ("hex(_gs_hex_to_byte(NULL))", ""),
        ),
    ),
    Function(
        name="_gs_byte_to_hex",
        signature="_gs_byte_to_hex(bytes)",
        group=Group.BYTES,
        result="text",
        sql="lower(hex(_1))",
        meaning="Bytes as hexadecimal digits, in small letters, without 0x.",
        examples=(
            ("_gs_byte_to_hex(X'00FF')", "00ff"),
            ("_gs_byte_to_hex(X'')", ""),
            ("_gs_byte_to_hex(NULL)", "NULL"),
        ),
    ),
    Function(
        name="reverse_bytes32",
        signature="reverse_bytes32(bytes)",
        group=Group.BYTES,
        result="bytes",
        sql=f"CASE WHEN octet_length(_1) = 32 THEN concat({_TURNED}) WHEN _1 IS NOT NULL"
        " THEN hr_fail(concat('reverse_bytes32 takes 32 bytes, found ', octet_length(_1))) END",
        meaning="32 bytes in the opposite order: what `to_u256` needs of numbers whose lowest byte comes"
        " first.",
        examples=(
            ("hex(reverse_bytes32(unhex(concat('0102', repeat('0', 60)))))", "0" * 60 + "0201"),
            ("reverse_bytes32(unhex(sha2('a', 256))) = unhex(sha2('a', 256))", "false"),
            (
                "hex(reverse_bytes32(unhex(concat('80ff7f0a0d', repeat('c3a9', 13), '00'))))",
                "00" + "A9C3" * 13 + "0D0A7FFF80",
            ),
            ("reverse_bytes32(NULL)", "NULL"),
        ),
        errors=(("reverse_bytes32(X'0102')", "reverse_bytes32 takes 32 bytes, found 2"),),
    ),
    Function(
        name="to_hex",
        signature="to_hex(int)",
        group=Group.BYTES,
        result="text",
        sql="lower(hex(_1))",
        meaning="A whole number in hexadecimal, in small letters; negative ones in two's complement of 64"
        " bits.",
        examples=(
            ("to_hex(255)", "ff"),
            ("to_hex(-1)", "f" * 16),
            ("to_hex(0)", "0"),
            ("to_hex(NULL)", "NULL"),
        ),
    ),
    Function(
        name="hex",
        signature="hex(int)",
        group=Group.BYTES,
        result="text",
        sql="lower(hex(_1))",
        where=DialectScope.DATAFUSION,
        meaning="The same as `to_hex`. Spark's writes capitals.",
        examples=(("hex(255)", "ff"),),
    ),
    Function(
        name="unhex",
        signature="unhex(text)",
        group=Group.BYTES,
        result="bytes",
        sql="unhex(_1)",
        where=DialectScope.SPARK,
        meaning=(
            "The bytes that hexadecimal digits stand for; an odd number of them begins with a 0, where"
            " Streamling has a 0 instead of the "
            "first digit. NULL for anything else."
        ),
        examples=(
            ("hex(unhex('F'))", "0F"),
            ("unhex('zz')", "NULL"),
            ("hex(unhex(''))", ""),
            ("unhex(NULL)", "NULL"),
        ),
    ),
    Function(
        name="bin",
        signature="bin(int)",
        group=Group.BYTES,
        result="text",
        sql="CASE WHEN _1 < 0 THEN concat('-', bin(CASE WHEN _1 < -9223372036854775807 THEN _1 ELSE"
        " -CAST(_1 AS BIGINT) END)) ELSE bin(_1) END",
        where=DialectScope.DATAFUSION,
        meaning="A whole number in binary, with its sign. Spark's writes negative ones in two's complement"
        " of 64 bits.",
        examples=(
            ("bin(13)", "1101"),
            ("bin(-5)", "-101"),
            ("bin(CAST(-9223372036854775808 AS BIGINT))", f"-1{'0' * 63}"),
            ("bin(0)", "0"),
            ("bin(NULL)", "NULL"),
        ),
    ),
)
