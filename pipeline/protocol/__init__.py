"""The exactly-once protocol: epochs, positions, the ledger, and the coordinator of a pipeline."""
