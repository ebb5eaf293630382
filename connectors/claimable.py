"""Targets that keep track of who writes them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.pipeline.protocol.claims import Claim


class Claimable:
    """What a sink knows about the claims to its target."""

    def claims(self) -> Sequence[Claim]:
        """Return every claim to the target, including this sink's own.

        The result is empty if the target is missing or stores no claims. `register` adds this sink's claim in
        its atomic step. It raises SinkStateError (`TargetClaimant.refuse`) if a rival has a claim, also one
        made at the same time, and it replaces the claims of `TargetClaimant.former`.
        """
        return ()

    def release(self, claims: Sequence[Claim]) -> None:
        """Remove these claims of other sinks and fence their writers.

        Called after `prepare`, before `register`.
        """
        del claims
