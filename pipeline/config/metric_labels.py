"""Labels that every metric has, which neither settings nor nodes may set."""

from __future__ import annotations

RESERVED = ("id", "topology_node_type", "operator_type", "service_instance_id", "le")
"""The names of these labels. `le` is that of a histogram's buckets."""
