"""Checks of a pipeline against real systems: preflight, audit, the ledger's proof, and the content audit."""
