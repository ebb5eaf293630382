"""Sources as a run reads them: history, the handoff, the stream, snapshots, and side outputs."""
