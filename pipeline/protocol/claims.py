"""The owner of a target. One pipeline owns it, unless every sink that writes it sets `share: true`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.protocol.epochs import SinkKey


@dataclass(frozen=True, slots=True)
class Claim:
    """One sink's claim to a target, as the target stores it.

    `epoch` is the last one that the sink wrote, or None.
    """

    key: SinkKey
    share: bool
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class TargetClaimant:
    """A sink that claims a target. `siblings` are the sinks of its pipeline file, by name."""

    key: SinkKey
    share: bool
    siblings: frozenset[str] = frozenset()

    def former(self, claims: Iterable[Claim]) -> list[Claim]:
        """Return the claims that this sink replaces when it registers.

        They belong to the same pipeline name under a lost ledger's UUID, or to a sink that the file has since
        renamed.
        """
        return [claim for claim in claims if claim.key != self.key and self._is_former(claim.key)]

    def others(self, claims: Iterable[Claim]) -> list[Claim]:
        """Return the claims of other sinks, which this sink does not replace."""
        return [claim for claim in claims if claim.key != self.key and not self._is_former(claim.key)]

    def rivals(self, claims: Iterable[Claim]) -> list[Claim]:
        """Return the claims that exclude this sink from the target."""
        return [claim for claim in self.others(claims) if not (self.share and claim.share)]

    def refuse(self, claims: Iterable[Claim], target: str, *, file: str = "FILE") -> None:
        """Raise SinkStateError if a rival is among `claims`."""
        if result := self.rivals(claims):
            raise claim_error(self, result[0], target, file)

    def _is_former(self, key: SinkKey) -> bool:
        if (key.name, key.lane, key.sink) == (self.key.name, self.key.lane, self.key.sink):
            return True
        return (key.pipeline, key.lane) == (
            self.key.pipeline,
            self.key.lane,
        ) and key.sink not in self.siblings


def claim_error(owner: TargetClaimant, claim: Claim, target: str, file: str) -> SinkStateError:
    """Return the error for a target that another sink claims."""
    sink, key = owner.key.sink, claim.key
    if key.pipeline == owner.key.pipeline:
        msg = f"{target} is already the target of sink '{key.sink}' of this pipeline"
        hint = (
            "Give one of the two another target. To write two inputs into one target, use UNION ALL in a"
            " transform."
        )
        return SinkStateError(msg, hint=hint, node=sink)
    at = f", epoch {claim.epoch}" if claim.epoch is not None else ""
    msg = (
        f"{target} is the target of another pipeline: sink '{key.sink}' of '{key.name}' ({key.pipeline}{at})"
    )
    shares = "both sinks" if not owner.share else f"that sink too, and run '{key.name}' once"
    hint = (
        f"Give sink '{sink}' another target. If '{key.name}' no longer runs, `headrace accept-target {file}"
        f" --sink {sink} --take-over` ends its"
        f" claim; its rows stay. If both pipelines shall write the target, set `share: true` on {shares}."
    )
    return SinkStateError(msg, hint=hint, node=sink)


def claim_names(claims: Collection[Claim]) -> list[str]:
    """Return the claims' keys as strings, for the ledger and log lines."""
    return sorted(f"{claim.key.name}:{claim.key.text}" for claim in claims)
