"""Claims to a Delta table: one table property per sink.

`headrace.claim.<uuid>/<lane>/<sink>` is `{"name", "share", "table"}`. Delta cannot set a property only if
another one is absent. So a sink sets its own claim first and reads all claims afterwards: of two that come at
once, at least one sees the other and withdraws. `table` is the table's own id: properties that a clone of the
table brought along are no claims to the clone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from headrace.connectors.delta.table_log import TableLog
from headrace.pipeline.protocol.claims import Claim, TargetClaimant
from headrace.pipeline.protocol.epochs import SinkKey

PREFIX = "headrace.claim."


def read_claims(table: TableLog) -> list[Claim]:
    """Return every claim to the table; none if there is no table."""
    snapshot = table.snapshot()
    identity = snapshot.version.identity
    claims = []
    for name, text in snapshot.read_properties().items():
        app = name.removeprefix(PREFIX)
        if app == name or app.count("/") != 2:
            continue
        data = json.loads(text)
        uuid, lane, sink = app.split("/", 2)
        if data.get("table") == identity:
            claims.append(Claim(SinkKey(uuid, data.get("name", ""), lane, sink), bool(data.get("share"))))
    return claims


def claim(table: TableLog, owner: TargetClaimant, target: str) -> None:
    """Claim the table. Raise SinkStateError for a rival's claim.

    If a rival claims the table at the same time, withdraw this claim.
    """
    there = read_claims(table)
    owner.refuse(there, target)
    if Claim(owner.key, owner.share) in there:
        return
    identity = table.snapshot().version.identity
    value = json.dumps({"name": owner.key.name, "share": owner.share, "table": identity})
    table.set_properties({PREFIX + owner.key.text: value})
    there = read_claims(table)
    if owner.rivals(there):
        end_claims(table, [Claim(owner.key, owner.share)])
        owner.refuse(there, target)
    if former := owner.former(there):
        end_claims(table, former)


def end_claims(table: TableLog, claims: Sequence[Claim]) -> None:
    """Remove the claims of these sinks."""
    table.set_properties({PREFIX + one.key.text: None for one in claims})
