"""Files that a `.proto` file may import without a reference in the registry."""

from __future__ import annotations

import importlib
from pathlib import Path

from headrace.connectors.kafka.registry_client import SchemaReference
from headrace.pipeline.errors import UserError

CONFLUENT = (
    SchemaReference(
        "confluent/meta.proto",
        """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    ),
    SchemaReference(
        "confluent/type/decimal.proto",
        """
syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
""",
    ),
)
"""What a registry of Confluent adds by itself."""


def require_packages() -> None:
    """Raise UserError if a package that reads Protobuf is not installed."""
    try:
        for name in ("google.protobuf", "grpc_tools", "ptars"):
            importlib.import_module(name)
    except ImportError as error:
        msg = f"`data_format: protobuf` needs the package `{error.name}`"
        raise UserError(msg, hint="pip install 'headrace[protobuf]'") from error


def import_folders() -> list[Path]:
    """Return the folders with `google/protobuf` and `google/type`."""
    import google.type
    import grpc_tools

    return [Path(grpc_tools.__file__).parent / "_proto", Path(next(iter(google.type.__path__))).parents[1]]
