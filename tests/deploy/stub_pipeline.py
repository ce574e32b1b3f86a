"""A pipeline without processes, for clusters whose GPUs are numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ray import serve

from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Profile
from deploy.serving.records import Run


class StubPipeline:
    """Takes the place of `deploy.serving.pipeline.Pipeline`."""

    def __init__(self, profile: Profile) -> None:
        self._name = serve.get_replica_context().replica_id.unique_id

    async def session(self, session: SessionSpec) -> AsyncIterator[Run]:
        """Runs until it is cancelled."""
        yield Run(self._name, "running", "started")
        await asyncio.Event().wait()
