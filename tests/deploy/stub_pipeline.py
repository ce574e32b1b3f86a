"""A pipeline without processes, for clusters whose GPUs are numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ray import serve

from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Profile
from deploy.serving.records import ClusterStore, Records, Run


class StubPipeline:
    """Takes the place of `deploy.serving.pipeline.Pipeline`."""

    def __init__(self, profile: Profile) -> None:
        context = serve.get_replica_context()
        self._name = context.replica_id.unique_id
        self._records = Records(context.app_name, ClusterStore())

    async def session(self, session: SessionSpec) -> AsyncIterator[Run]:
        """Runs until it is cancelled, or its record says that it is over."""
        run = Run(self._name, "running", "started")
        self._records.report(session.id, run)
        try:
            yield run
            while not self._records.over(session.id):
                await asyncio.sleep(0.2)
            yield Run(self._name, "stopped", "the session is over")
        finally:
            self._records.report(session.id, None)
