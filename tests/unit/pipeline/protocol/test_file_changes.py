"""Changes of a file that a pipeline accepts, and the errors for others. No server and no Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.connectors.clickhouse.config import ClickHouseSourceConfig
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.iceberg.config import IcebergSourceConfig
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.pipeline.file.changes import FileChanges, file_changes
from headrace.pipeline.file.loader import PipelineFile, parse_pipeline
from headrace.pipeline.model.hybrid import HybridSourceConfig
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json, content_ref
from headrace.pipeline.protocol.source_identity import source_identity

TABLE = """
name: orders
sources:
  src: {type: clickhouse, table_name: db.h, primary_key: id}
sinks:
  pg: {type: postgres, from: src, table: target}
"""
HYBRID = """
name: orders
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources:
      - {source_type: clickhouse, table_name: db.h}
    unbounded_source: {source_type: kafka, topic: orders, schema: {id: int64, day: date32, v: string}}
    offset_table: {}
sinks:
  pg: {type: postgres, from: src, table: target}
"""
MONTHS = "partitions: {column: day, every: month, start: 2024-01, end: 2024-04}\n"
AT = {"topic_id": "t", "offsets": {"0": 5}}


def parsed(text: str) -> PipelineFile:
    return parse_pipeline(text, "orders.yaml")


def carried(
    file: PipelineFile, *windows: str, partly: str | None = None, stream: bool = False
) -> dict[str, Any]:
    """The position after some windows, and perhaps the handoff."""
    node = file.model.sources["src"]
    source = content_ref(source_identity(node))
    here: dict[str, Any] = {
        "source": source,
        "pins": [{}],
        "fence": AT,
        "cursor": None,
        "history": positions.no_history(),
    }
    for window in windows:
        here = positions.advance_partition(
            file.model, node, here, window, (positions.bounded_phases(node), 0, "")
        )
    if partly is not None:
        here = positions.advance_partition(file.model, node, here, partly, (0, 1, "abcd1234"))
    return {"src": here | ({"stream": AT, "began": AT, "catch_up": AT} if stream else {})}


def refusal(result: FileChanges) -> str:
    (refused,) = result.refused
    return str(refused)


class TestWindows:
    """Positions know the windows of history by their bounds."""

    def test_adjacent_windows_are_joined_whatever_their_order(self) -> None:
        file = parsed(TABLE + MONTHS)
        here = carried(file, "2024-03-01", "2024-01-01")["src"]["history"]
        assert here["done"] == [["2024-01-01", "2024-02-01"], ["2024-03-01", "2024-04-01"]]
        assert "complete" not in here
        assert positions.completed_partitions(file.model, carried(file, "2024-03-01", "2024-01-01")) == [
            "2024-01-01",
            "2024-03-01",
        ]
        whole = carried(file, "2024-03-01", "2024-01-01", "2024-02-01")
        history = {
            "by": None,
            "done": [["2024-01-01", "2024-04-01"]],
            "complete": True,
            "pins": content_ref([{}]),
        }
        assert whole["src"]["history"] | {"by": None} == history
        assert "pins" not in whole["src"]
        assert positions.history_complete(file.model, whole)

    def test_a_window_that_is_partly_read_keeps_its_place(self) -> None:
        file = parsed(TABLE + MONTHS)
        here = carried(file, "2024-01-01", partly="2024-02-01")["src"]
        assert positions.window_progress(here, "2024-02-01") == (0, 1, "abcd1234")
        assert positions.window_progress(here, "2024-03-01") == (0, 0, "")
        assert positions.completed_partitions(file.model, {"src": here}) == ["2024-01-01"]

    def test_history_without_partitions_is_one_window(self) -> None:
        file = parsed(TABLE)
        assert not positions.history_complete(file.model, carried(file))
        assert positions.completed_partitions(file.model, carried(file, "")) == [""]
        assert positions.history_complete(file.model, carried(file, ""))

    def test_another_cut_is_never_complete(self) -> None:
        """What `status` and sensors read from the ledger with an edited file."""
        done = carried(parsed(TABLE + MONTHS), "2024-01-01", "2024-02-01", "2024-03-01")
        for text in (
            TABLE,
            TABLE + MONTHS.replace("every: month", "every: day"),
            TABLE + MONTHS.replace("column: day", "column: at"),
        ):
            assert positions.completed_partitions(parsed(text).model, done) == []
            assert not positions.history_complete(parsed(text).model, done)


class TestSize:
    """A position stays small: it is in every plan and in every record."""

    def test_large_pins_are_kept_by_the_ledger(self) -> None:
        large = [{"files": ["x" * 40] * 100}]
        assert positions.placed_pins([{}]) == [{}]
        assert positions.placed_pins(large) == {"ref": content_ref(large)}
        assert positions.pins_ref({"pins": large}) == positions.pins_ref(
            {"pins": positions.placed_pins(large)}
        )

    def test_windows_added_after_the_last_one_bring_the_pins_back(self) -> None:
        before, after = parsed(TABLE + MONTHS), parsed(TABLE + MONTHS.replace("end: 2024-04", "end: 2024-06"))
        whole = carried(before, "2024-01-01", "2024-02-01", "2024-03-01")["src"]
        here = positions.advance_partition(
            after.model, after.model.sources["src"], whole, "2024-04-01", (1, 0, "")
        )
        assert here["pins"] == {"ref": content_ref([{}])}
        assert positions.pins_ref(here) == positions.pins_ref(whole)

    def test_of_a_live_pipeline_with_a_partitioned_history_and_four_partitions(self) -> None:
        file = parsed(HYBRID + "partitions: {column: day, every: day, start: 2015-01-01, end: 2025-01-01}\n")
        at = {"topic_id": "x" * 22, "offsets": {str(part): 123_456_789 for part in range(4)}}
        here: dict[str, Any] = carried(file)["src"] | {"fence": at}
        *_, last = positions.windows_of(file.model)
        here["history"] = {
            "by": positions.partitions_json(file.model.partitions),
            "done": [["2015-01-01", last]],
            "open": {},
        }
        here = positions.advance_partition(file.model, file.model.sources["src"], here, last, (1, 0, ""))
        live = positions.without_overlap(
            here | {"stream": at, "began": at, "catch_up": at, "overlap": {"end": at, "nulls": False}}
        )
        assert positions.history_complete(file.model, {"src": live})
        assert len(json.dumps({"src": live}, separators=(",", ":"))) < 500


class TestPartitions:
    """`partitions` decides which rows a window has, so it is fixed once one has begun."""

    EDITS = pytest.mark.parametrize(
        ("before", "after"),
        [
            ("", MONTHS),
            (MONTHS, ""),
            (MONTHS, MONTHS.replace("every: month", "every: day")),
            (MONTHS, MONTHS.replace("column: day", "column: at")),
            (MONTHS, MONTHS.replace("start: 2024-01", "start: 2023-12")),
            (MONTHS, MONTHS.replace("start: 2024-01", "start: 2024-02")),
            (MONTHS, MONTHS.replace("end: 2024-04", "end: 2024-04, timezone: Europe/Berlin")),
        ],
        ids=["added", "removed", "month-to-day", "column", "earlier", "later", "time-zone"],
    )

    @EDITS
    @pytest.mark.parametrize("partly", [False, True], ids=["done", "partly"])
    def test_a_change_is_refused_once_a_window_has_begun(self, before: str, after: str, partly: bool) -> None:
        file, first = parsed(TABLE + before), "2024-01-01" if before else ""
        position = carried(file, partly=first) if partly else carried(file, first)
        message = refusal(file_changes(parsed(TABLE + after), position))
        assert message.startswith(f"orders.yaml:{7 if after else 2}:")
        assert "`partitions` cannot change any more: the history of source `src` was begun" in message
        former = "{column: day, every: month, start: 2024-01-01, end: 2024-04-01}"
        assert (
            f"Restore the former value: `partitions: {former}`" if before else "Remove `partitions` again"
        ) in message
        assert "headrace reset orders.yaml" in message

    @EDITS
    def test_before_that_it_is_free(self, before: str, after: str) -> None:
        assert file_changes(parsed(TABLE + after), carried(parsed(TABLE + before))) == FileChanges()

    def test_the_same_file_is_no_change(self) -> None:
        for text in (TABLE + MONTHS, HYBRID + MONTHS):
            assert (
                file_changes(parsed(text), carried(parsed(text), "2024-01-01", partly="2024-02-01"))
                == FileChanges()
            )

    def test_a_later_end_adds_windows(self) -> None:
        before, after = parsed(TABLE + MONTHS), parsed(TABLE + MONTHS.replace("end: 2024-04", "end: 2024-06"))
        position = carried(before, "2024-01-01", "2024-02-01", "2024-03-01")
        result = file_changes(after, position)
        assert not result.refused
        assert "history now ends at 2024-06-01" in result.notes[0]
        assert positions.completed_partitions(after.model, position) == [
            "2024-01-01",
            "2024-02-01",
            "2024-03-01",
        ]
        assert not positions.history_complete(after.model, position)
        here = positions.advance_partition(
            after.model, after.model.sources["src"], position["src"], "2024-04-01", (1, 0, "")
        )
        assert here["history"]["done"] == [["2024-01-01", "2024-05-01"]]
        assert file_changes(after, {"src": here}) == FileChanges()

    def test_history_cannot_be_extended_once_the_stream_has_begun(self) -> None:
        before, after = (
            parsed(HYBRID + MONTHS),
            parsed(HYBRID + MONTHS.replace("end: 2024-04", "end: 2024-06")),
        )
        windows = ("2024-01-01", "2024-02-01", "2024-03-01")
        assert not file_changes(after, carried(before, *windows)).refused
        position = carried(before, *windows, stream=True)
        assert "Set `history_end: 2024-04-01` in `partitions`" in refusal(file_changes(after, position))
        longer = parsed(HYBRID + MONTHS.replace("end: 2024-04", "end: 2024-06, history_end: 2024-04-01"))
        assert file_changes(longer, position) == FileChanges()
        assert positions.history_complete(longer.model, position)

    def test_a_stream_of_another_source_counts_too(self) -> None:
        """Its rows are in the same sinks."""
        two = TABLE.replace(
            "sinks:",
            "  live: {type: kafka, topic: t, primary_key: id, schema: {id: int64}}\nsinks:\n  out: {type:"
            " print, from: live}",
        )
        before, after = parsed(two + MONTHS), parsed(two + MONTHS.replace("end: 2024-04", "end: 2024-06"))
        stream = {
            "live": {"source": content_ref(source_identity(before.model.sources["live"])), "stream": AT}
        }
        assert not file_changes(after, carried(before, "2024-01-01") | stream).refused
        position = carried(before, "2024-01-01", "2024-02-01", "2024-03-01") | stream
        assert "the stream has begun" in refusal(file_changes(after, position))

    @pytest.mark.parametrize(
        ("former", "now", "keys"),
        [
            ("{column: v, values: [a, b]}", "{column: v, values: [a, b, c]}", ("a", "b")),
            ("{column: id, every: 10, end: 20}", "{column: id, every: 10, end: 30}", ("0", "10")),
        ],
        ids=["values", "integers"],
    )
    def test_a_partition_is_added_only_before_a_stream(
        self, former: str, now: str, keys: tuple[str, ...]
    ) -> None:
        before, after = (parsed(f"{HYBRID}partitions: {by}\n") for by in (former, now))
        assert "the stream begins where the history ended" in refusal(
            file_changes(after, carried(before, keys[0]))
        )
        two = TABLE.replace(
            "sinks:", "  live: {type: kafka, topic: t, primary_key: id, schema: {id: int64}}\nsinks:"
        )
        two += "  out: {type: print, from: live}\n"
        before, after = (parsed(f"{two}partitions: {by}\n") for by in (former, now))
        stream = {
            "live": {"source": content_ref(source_identity(before.model.sources["live"])), "stream": AT}
        }
        partly = carried(before, keys[0]) | stream
        assert "are read from a new snapshot" in file_changes(after, partly).notes[0]
        message = refusal(file_changes(after, carried(before, *keys) | stream))
        assert "the stream has begun" in message
        assert "Restore the former value: `partitions: " in message

    def test_an_earlier_end_leaves_rows_out_where_a_stream_follows(self) -> None:
        before, after = (
            parsed(HYBRID + MONTHS),
            parsed(HYBRID + MONTHS.replace("end: 2024-04", "end: 2024-04, history_end: 2024-03")),
        )
        assert "rows of the days between would be in neither" in refusal(
            file_changes(after, carried(before, "2024-01-01"))
        )
        assert file_changes(after, carried(before)) == FileChanges()

    def test_an_earlier_end_of_a_table_is_the_users_choice(self) -> None:
        before, after = parsed(TABLE + MONTHS), parsed(TABLE + MONTHS.replace("end: 2024-04", "end: 2024-03"))
        assert "history now ends at 2024-03-01" in file_changes(after, carried(before, "2024-01-01")).notes[0]
        assert "window 2024-03-01 of source `src` is partly read" in refusal(
            file_changes(after, carried(before, partly="2024-03-01"))
        )


KAFKA = """
name: orders
sources:
  a: {type: kafka, topic: a, primary_key: id, schema: {id: int64, v: int64}}
sinks:
  pg: {type: postgres, from: a, table: target}
"""
TWO = KAFKA.replace(
    "sinks:",
    "  b: {type: kafka, topic: b, primary_key: id, schema: {id: int64, v: int64}}\nsinks:\n  out: {type:"
    " print, from: b}",
)


def after_an_epoch(before: str, after: str) -> FileChanges:
    """What is found when the file changes after the first epoch."""
    first, second = parsed(before), parsed(after)
    contents: dict[str, Json] = {}
    position: dict[str, Any] = {}
    for name, node in first.model.sources.items():
        identity = source_identity(node)
        contents[content_ref(identity)] = identity
        history = (
            {"pins": [{}], "fence": AT, "cursor": None, "history": positions.no_history()}
            if positions.bounded_phases(node)
            else {}
        )
        position[name] = {"source": content_ref(identity), "stream": AT} | history
    return file_changes(second, position, first.compiled(), contents.get)


class TestSources:
    """A position belongs to the source that it was made with."""

    @pytest.mark.parametrize(
        ("before", "after", "line", "message"),
        [
            (
                TABLE,
                TABLE.replace("db.h", "db.h2"),
                4,
                "`table_name` cannot change from `db.h` to `db.h2`: its history was pinned",
            ),
            (
                TABLE,
                TABLE.replace("primary_key: id", "primary_key: id, filter: 'id > 2'"),
                4,
                "`filter` cannot change from nothing to `id > 2`",
            ),
            (
                TABLE.replace("primary_key: id", "primary_key: id, filter: 'id > 2'"),
                TABLE,
                4,
                "Restore the former value, `filter: id > 2`",
            ),
            (
                TABLE,
                TABLE.replace("primary_key: id", "primary_key: id, snapshot: none"),
                4,
                "`snapshot` cannot change",
            ),
            (
                HYBRID,
                HYBRID.replace("db.h}", "db.h2}"),
                8,
                "`table_name` cannot change from `db.h` to `db.h2`",
            ),
            (
                HYBRID,
                HYBRID.replace("db.h}", "db.h2}\n      - {source_type: clickhouse, table_name: db.h}"),
                7,
                "`bounded_sources` cannot change from `[db.h]` to `[db.h2, db.h]`",
            ),
            (
                HYBRID,
                HYBRID.replace("topic: orders", "topic: other"),
                9,
                "`topic` cannot change from `orders` to `other`: the stream's offsets",
            ),
            (
                HYBRID,
                HYBRID.replace("offset_table: {}", "handoff_lag: 2h"),
                4,
                "the fence between history and stream was fixed",
            ),
            (KAFKA, KAFKA.replace("topic: a", "topic: b"), 4, "`topic` cannot change from `a` to `b`"),
            (
                KAFKA,
                KAFKA.replace("topic: a", "topic: a, starting_offsets: latest"),
                4,
                "`starting_offsets` cannot change from nothing to `latest`",
            ),
            (KAFKA, KAFKA.replace("  a:", "  c:").replace("from: a", "from: c"), 4, "was called `a` before"),
            (KAFKA, TWO, 5, "was added to a pipeline that has begun"),
            (KAFKA, TABLE.replace("src", "a"), 4, "`type` cannot change from `kafka` to `clickhouse`"),
        ],
    )
    def test_a_change_is_refused_with_its_line_and_the_way_out(
        self, before: str, after: str, line: int, message: str
    ) -> None:
        refused = str(after_an_epoch(before, after).refused[0])
        assert message in refused
        assert refused.startswith(f"orders.yaml:{line}:")
        assert "headrace reset orders.yaml" in refused

    @pytest.mark.parametrize(
        ("before", "after", "note"),
        [
            (
                KAFKA,
                KAFKA.replace("v: int64", "v: int64, w: string"),
                "`a` changed: the next epochs follow the new file",
            ),
            (KAFKA, KAFKA.replace("topic: a", "topic: a, filter: 'v > 1'"), "`a` changed"),
            (TABLE, TABLE.replace("primary_key: id", "primary_key: id, split_rows: 10"), "`src` changed"),
            (TWO, KAFKA, "source `b` is no longer in the file: its rows stay"),
            (KAFKA, KAFKA.replace("table: target", "table: target, on_conflict: nothing"), "`pg` changed"),
        ],
    )
    def test_what_takes_effect_from_the_next_epoch_is_noted(self, before: str, after: str, note: str) -> None:
        result = after_an_epoch(before, after)
        assert not result.refused
        assert note in result.notes[0]

    def test_what_is_written_out_and_the_default_are_the_same(self) -> None:
        lag = HYBRID.replace("offset_table: {}", "handoff_lag: 1h")
        assert after_an_epoch(lag, lag.replace("    handoff_lag: 1h\n", "")).refused == []
        assert (
            after_an_epoch(KAFKA, KAFKA.replace("topic: a", "topic: a, starting_offsets: earliest")).refused
            == []
        )

    def test_a_ledger_that_lost_what_the_source_was(self) -> None:
        file = parsed(KAFKA)
        position = {"a": {"source": content_ref(source_identity(file.model.sources["a"])), "stream": AT}}
        assert file_changes(file, position) == FileChanges()
        message = refusal(file_changes(parsed(KAFKA.replace("topic: a", "topic: b")), position))
        assert "is not the source that its position was made with" in message

    def test_a_position_of_an_earlier_release(self) -> None:
        position = {"src": {"pins": [{}], "fence": None, "cursor": None, "windows": {"": [1, 0, ""]}}}
        assert "that this release does not read" in refusal(file_changes(parsed(TABLE), position))

    def test_every_key_of_a_source_is_fixed_or_may_change(self) -> None:
        """A new key must be put into one of the two.

        What decides which rows a pin or an offset stands for is fixed.
        """
        may_change = {
            "clickhouse": {"columns", "split_rows"},
            "iceberg": {"columns"},
            "file": {
                "columns",
                "parallelism",
                "poll_interval",
                "min_file_age",
                "on_error",
                "max_error_rate",
            },
            "kafka": {
                "data_format",
                "schema",
                "reader_schema",
                "reader_schema_id",
                "message_type",
                "validate_writer_schema_ordering",
                "schema_id_overrides",
                "skip_schema_resolution",
                "skip_schema_resolution_for_reader_schema_ids",
                "tombstone",
                "on_error",
                "max_error_rate",
                "include_metadata",
                "filter",
                "batch_size",
                "batch_flush_interval",
                "parallelism",
            },
            "hybrid": set(),
        }
        shared = {"type", "primary_key", "telemetry", "description"}
        for kind in (
            ClickHouseSourceConfig,
            IcebergSourceConfig,
            FileSourceConfig,
            KafkaSourceConfig,
            HybridSourceConfig,
        ):
            name = kind.model_fields["type"].default
            keys = {field.alias or key for key, field in kind.model_fields.items()} - shared
            assert keys == kind.identity_keys | may_change[name]


class TestSinks:
    """Rows of earlier epochs lie in a target, under a key."""

    @pytest.mark.parametrize(
        ("before", "after", "message"),
        [
            (
                KAFKA,
                KAFKA.replace("table: target", "table: other"),
                "`table` cannot change from `target` to `other`",
            ),
            (
                KAFKA,
                KAFKA.replace("table: target", "table: target, schema: s"),
                "`schema` cannot change from `public` to `s`",
            ),
            (
                KAFKA,
                KAFKA.replace("{type: postgres, from: a, table: target}", "{type: print, from: a}"),
                "`type` cannot change",
            ),
            (
                KAFKA,
                KAFKA.replace("primary_key: id", "primary_key: [id, v]"),
                "the primary key cannot change from `id` to `id, v`",
            ),
        ],
    )
    def test_target_and_key_are_fixed(self, before: str, after: str, message: str) -> None:
        refused = refusal(after_an_epoch(before, after))
        assert f"sink `pg`: {message}" in refused
        assert refused.startswith("orders.yaml:6:")

    def test_before_the_first_epoch_they_may_change(self) -> None:
        file = parsed(KAFKA.replace("table: target", "table: other"))
        position = {"a": {"source": content_ref(source_identity(file.model.sources["a"])), "stream": AT}}
        assert file_changes(file, position) == FileChanges()
