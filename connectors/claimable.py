"""Targets that keep track of who writes them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.pipeline.protocol.claims import Claim


class Claimable:
    """What a sink knows about the claims to its target."""

    def claims(self) -> Sequence[Claim]:
        """Every claim to the target, this sink's own included; empty where the target is missing or keeps no claims.

        `join` adds this sink's claim in its atomic act. It raises SinkStateError (`Owner.refuse`) where a rival's claim is there, also one that
        came at the same moment, and it replaces the claims of `Owner.former`.
        """
        return ()

    def release(self, claims: Sequence[Claim]) -> None:
        """End these claims of others, and fence their writers. Called after `prepare`, before `join`."""
        del claims
