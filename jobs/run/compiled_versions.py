"""The versions of a pipeline file that a run executes, each compiled once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.jobs.planning.compiled_pipeline import CompiledPipeline
from headrace.jobs.run.session import RunSession
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import PipelineFile, from_compiled, hash_of
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.ledger import Ledger


class CompiledVersions:
    """The current file, and earlier ones of which an epoch is written again.

    `find_ledger` returns the ledger of the run, which is open before a version is compiled.
    """

    def __init__(
        self,
        file: PipelineFile,
        settings: Settings,
        session: RunSession,
        stop: threading.Event,
        find_ledger: Callable[[], Ledger],
    ) -> None:
        self._file, self._settings, self._session, self._stop = file, settings, session, stop
        self._find_ledger = find_ledger
        self._compiled: dict[str, CompiledPipeline] = {}
        self._files: dict[str, PipelineFile] = {}

    @property
    def current(self) -> CompiledPipeline:
        """The compiled pipeline of the current file."""
        return self._compile(self._file)

    def find(self, compiled: Json) -> CompiledPipeline:
        """Return the compiled pipeline of a version that the ledger stores."""
        stored = hash_of(compiled)
        if stored not in self._files:
            result = from_compiled(compiled, self._file.path, self._file)
            self._files[stored] = self._file if result.hash == self._file.hash else result
        return self._compile(self._files[stored])

    def close(self) -> None:
        """Close all compiled pipelines."""
        for pipeline in self._compiled.values():
            pipeline.close()

    def _compile(self, file: PipelineFile) -> CompiledPipeline:
        if file.hash not in self._compiled:
            pipeline = CompiledPipeline(file, self._settings, self._session.spark)
            self._compiled[file.hash] = pipeline
            for source in pipeline.sources.values():
                source.contents = self._find_ledger().content
                source.watch_stop(self._stop)
        return self._compiled[file.hash]
