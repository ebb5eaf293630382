"""Claims to a Delta table: one table property per sink.

`headrace.claim.<uuid>/<lane>/<sink>` is `{"name", "share", "table"}`. Delta cannot set a property only if
another one is absent. So a sink sets its own claim first and reads all claims afterwards: of two that come at
once, at least one sees the other and withdraws. `table` is the table's own id: properties that a clone of the
table brought along are no claims to the clone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headrace.connectors.delta.transaction_log import TableLog
from headrace.pipeline.protocol.claims import Claim, TargetClaimant
from headrace.pipeline.protocol.epochs import SinkKey

PREFIX = "headrace.claim."


def read_claims(table: TableLog) -> list[Claim]:
    """Return every claim to the table; none if there is no table."""
    snapshot = table.snapshot()
    identity = table.identity(snapshot)
    found = []
    for app, text in _properties(snapshot).items() if identity else ():
        data = json.loads(text)
        uuid, lane, sink = app.split("/", 2)
        if data.get("table") == identity:
            found.append(Claim(SinkKey(uuid, data.get("name", ""), lane, sink), bool(data.get("share"))))
    return found


def claim(session: Any, table: TableLog, owner: TargetClaimant, target: str) -> None:
    """Claim the table. Raise SinkStateError for a rival's claim.

    If a rival claims the table at the same time, withdraw this claim.
    """
    there = read_claims(table)
    owner.refuse(there, target)
    if Claim(owner.key, owner.share) in there:
        return
    value = json.dumps(
        {"name": owner.key.name, "share": owner.share, "table": table.identity(table.snapshot())}
    )
    _alter(session, table, f"SET TBLPROPERTIES ({_text(PREFIX + owner.key.text)} = {_text(value)})")
    there = read_claims(table)
    if owner.rivals(there):
        end_claims(session, table, [Claim(owner.key, owner.share)])
        owner.refuse(there, target)
    if former := owner.former(there):
        end_claims(session, table, former)


def end_claims(session: Any, table: TableLog, claims: Sequence[Claim]) -> None:
    """Remove the claims of these sinks."""
    names = ", ".join(_text(PREFIX + one.key.text) for one in claims)
    _alter(session, table, f"UNSET TBLPROPERTIES IF EXISTS ({names})")


def _properties(snapshot: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    entries = snapshot.metadata().configuration().iterator()
    while entries.hasNext():
        entry = entries.next()
        name = str(entry._1())  # noqa: SLF001  a Scala tuple
        if name.startswith(PREFIX) and name.count("/") == 2:
            found[name.removeprefix(PREFIX)] = str(entry._2())  # noqa: SLF001
    return found


def _alter(session: Any, table: TableLog, what: str) -> None:
    path = table.path.replace("`", "``")
    session.sql(f"ALTER TABLE delta.`{path}` {what}")


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
