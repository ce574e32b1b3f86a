"""One process of a session: a Ray actor around plain-class roles. Only this file and `gang` know Ray."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import ray
import torch
from ray.actor import ActorHandle
from ray.util.metrics import Counter, Histogram

from actors.channels.local import LocalChannel
from actors.channels.opening import open_channel
from actors.channels.protocol import Channel, ChannelAborted, End
from actors.pipeline.context import StageContext
from actors.pipeline.folder import hold
from actors.pipeline.header import Header
from actors.pipeline.heartbeat import Address, Heart
from actors.pipeline.loop import Loop, LoopRole
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Edge, Topology
from actors.pipeline.trace import Trace, Turn

# Seconds between two snapshots of a role, about.
_SNAPSHOT_SECONDS = 1.0
_OPEN_TIMEOUT = 20.0
# Edges of the histograms, the same for every model: seconds, and shares of the time that a chunk lasts.
SECONDS = [0.001, 0.003, 0.01, 0.03, 0.06, 0.1, 0.13, 0.1667, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 3.0]
SHARES = [0.01, 0.03, 0.06, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 4.0]

T = TypeVar("T")
Factory = Callable[[Topology, Any], dict[str, LoopRole]]


class StageFailed(Exception):
    """A role raised; the message holds its traceback."""


# Ray would write down every call, for its dashboard: at several a second, a good part of its memory after some hours.
@ray.remote(  # type: ignore[call-overload]
    max_restarts=0, max_task_retries=0, concurrency_groups={"control": 4}, enable_task_events=False
)
class Stage:
    """The actor.

    The gang calls `load`, `become`, `reset`, `restore`, `resume`, `introduce`, `open` and `run` one after another. The
    other methods answer at any time, also while `run` runs.

    Args:
        topology: of the session.
        names: of the stages in it that this process can become.
        factory: "module:function" that builds the roles of a stage, by name (see roles.factory).
        heartbeats: where they go.
    """

    def __init__(self, topology: Topology, names: tuple[str, ...], factory: str, heartbeats: Address) -> None:
        self._topology, self._factory = topology, factory
        self._stages = {stage.name: stage for stage in topology.stages if stage.name in names}
        self._stage = self._stages[names[0]]
        self._built: dict[str, dict[str, LoopRole]] = {}  # loaded roles, by the stage that they are of
        self._roles: dict[str, LoopRole] = {}
        self._loops: dict[str, Loop] = {}
        self._channels: list[Channel] = []
        self._peers: list[ActorHandle] = []
        self._states: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._held: int | None = None  # descriptor of the session's folder
        clock = topology.model.clock
        self._trace = Trace(topology.spans, clock)
        self._snapshot_every = max(1, round(_SNAPSHOT_SECONDS / clock.seconds))
        self._clock = clock
        self._missed = 0
        plan = topology.profile.plan
        tags = {"plan": f"{plan.pipeline}x{plan.sequence}+{plan.decoder}", "model": Path(topology.profile.model).stem}

        def seconds(name: str, of: str, *keys: str) -> Histogram:
            return Histogram(name, f"Seconds {of}", SECONDS, (*keys, *tags)).set_default_tags(tags)

        self._seconds = seconds("characters_stage_seconds", "of work on one chunk", "stage")
        self._shares = Histogram(
            "characters_stage_share", "Work on one chunk by the time that it lasts", SHARES, ("stage", *tags)
        ).set_default_tags(tags)
        self._latency = seconds("characters_chunk_latency_seconds", "from aligner to publisher")
        self._turns = seconds("characters_turn_seconds", "of one step of a turn", "stage")
        self._renders = seconds("characters_publish_to_render_seconds", "from publisher to a user's eye")
        self._misses = Counter("characters_late_chunks", "Chunks that left late", tuple(tags)).set_default_tags(tags)
        self._heart = Heart(heartbeats, self._moved)

    def load(self) -> None:
        """Build the roles of every stage that this process can become. This takes minutes for a large model.

        Raises:
            UserError: see the factory.
        """
        torch.set_num_threads(self._topology.profile.threads)
        module, function = self._factory.split(":")
        factory: Factory = getattr(importlib.import_module(module), function)
        self._built = {name: factory(self._topology, stage) for name, stage in self._stages.items()}

    def become(self, name: str) -> None:
        """Be this stage from now on, and let go of what was loaded for others."""
        self._stage, self._roles = self._stages[name], self._built[name]
        self._built = {}
        context = StageContext(self._cancel_everywhere, self._record_turn, self._record_render)
        for role in self._roles.values():
            role.attach(context)

    def reset(self, session: SessionSpec) -> None:
        """Start a session.

        Raises:
            UserError: the portrait does not fit, or the room cannot be joined.
        """
        for role in self._roles.values():
            role.reset(session)

    def restore(self, states: dict[str, dict[str, Any]], cancelled: int) -> None:
        """After `reset`: go on from the newest snapshots of the process before this one (see `state`)."""
        for name, role in self._roles.items():
            if states.get(name):
                role.restore(states[name])
            role.cancel(cancelled)
        self._states = {name: states[name] for name in self._roles if name in states}

    def resume(self) -> None:
        """See `LoopRole.resume`."""
        for role in self._roles.values():
            role.resume()

    def introduce(self, peers: list[ActorHandle]) -> None:
        """Make the session's other stages known: a role may cancel a response in all of them."""
        self._peers = peers

    def open(self, directory: str, epoch: int, cancelled: int) -> None:
        """Open this stage's ends of all its edges, then connect its roles; the other stages do the same meanwhile.

        Args:
            directory: name of a folder for sockets below this host's temporary folder, the same for all stages.
            epoch: another number at every opening.
            cancelled: newest cancelled response.

        Raises:
            TimeoutError, RuntimeError: another stage did not open its end.
        """
        folder = Path(tempfile.gettempdir()) / directory
        self._let_go()
        self._held = hold(folder)
        own = {role.name for role in self._stage.roles}
        device = torch.device(self._stage.device)
        self._close_channels()  # of an opening that failed half-way
        ends: dict[tuple[str, str], Channel] = {}
        for number, edge in enumerate(self._topology.edges):
            path = str(folder / f"{epoch}-{number}")
            for channel, name in self._open_edge(edge, own, path, device):
                ends[edge.name, name] = channel
        for role in self._stage.roles:
            loop = Loop(
                self._roles[role.name],
                role.span,
                [(edge.port, ends[edge.name, role.name]) for edge in self._topology.inputs(role.name)],
                [(edge.port, ends[edge.name, role.name]) for edge in self._topology.outputs(role.name)],
                finished=self._recorder(role.name, role.span),
            )
            loop.cancelled = cancelled
            self._loops[role.name] = loop
        for found in self._roles.values():
            found.connect(str(folder / f"{epoch}-model"))

    def run(self) -> None:
        """Run every role until the channels are aborted.

        Raises:
            StageFailed: a role raised.
        """
        failures: list[str] = []
        threads = [
            threading.Thread(target=self._run_loop, args=(loop, failures), name=name, daemon=True)
            for name, loop in self._loops.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._close_channels()
        if failures:
            raise StageFailed(f"stage {self._stage.name}: {failures[0]}")

    @ray.method(concurrency_group="control")
    def abort(self) -> None:
        """Abort all channels: `run` ends with the chunk that it works on, in this stage and in its neighbours."""
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            channel.abort()
        for role in self._roles.values():
            role.abort()

    @ray.method(concurrency_group="control")
    def cancel(self, response_id: int) -> None:
        """Response `response_id` and older ones are over, for every role here."""
        self._cancel(response_id)

    def _cancel_everywhere(self, response_id: int) -> None:
        self._cancel(response_id)  # here first: in the room's stage this silences the character
        for peer in self._peers:
            peer.cancel.remote(response_id)

    def _record_turn(self, turn: Turn) -> None:
        self._trace.add_turn(turn)
        stamps = list(turn.stamps.items())
        for (_, begin), (name, end) in pairwise(stamps):
            self._turns.observe(max(0.0, end - begin), {"stage": name})
        if len(stamps) > 1:
            self._turns.observe(stamps[-1][1] - stamps[0][1], {"stage": "turn"})

    def _record_render(self, frame: int, at: float) -> float | None:
        seconds = self._trace.add_render(frame, at)
        if seconds is not None:
            self._renders.observe(max(0.0, seconds))
        return seconds

    def _cancel(self, response_id: int) -> None:
        for name, role in self._roles.items():
            loop = self._loops.get(name)
            if loop:
                loop.cancel(response_id)
            else:
                role.cancel(response_id)

    @ray.method(concurrency_group="control")
    def state(self) -> dict[str, dict[str, Any]]:
        """The newest snapshot of each role. The answer also shows that the process lives."""
        return dict(self._states)

    @ray.method(concurrency_group="control")
    def pid(self) -> int:
        """Process id of the actor, for logs and tests."""
        return os.getpid()

    @ray.method(concurrency_group="control")
    def alone(self) -> float:
        """Seconds since the last user left the room; 0 while one is there, or if the room is another stage's."""
        return max((role.alone() for role in self._roles.values()), default=0.0)

    @ray.method(concurrency_group="control")
    def ended(self) -> str:
        """Why the session is over by itself; "" while it goes on, or if the room is another stage's."""
        return next((reason for role in self._roles.values() if (reason := role.ended())), "")

    @ray.method(concurrency_group="control")
    def ask(self, role: str, question: Callable[[Any], T]) -> T:
        """What `question` returns for the role of this name; for tests and benches, from any thread."""
        return question(self._roles[role])

    @ray.method(concurrency_group="control")
    def trace(self) -> Trace:
        """The session's trace. Only the room's stage, where chunks end, has one that is not empty."""
        return self._trace

    @ray.method(concurrency_group="control")
    def counts(self) -> dict[str, tuple[int, int]]:
        """(chunks, dropped) of each role since the channels were opened."""
        return {name: (loop.counts.chunks, loop.counts.dropped) for name, loop in self._loops.items()}

    def _moved(self) -> int:
        return sum(loop.counts.chunks + loop.counts.dropped for loop in list(self._loops.values()))

    @ray.method(concurrency_group="control")
    def close(self, directory: str) -> None:
        """End the session: roles release what they hold."""
        for role in self._roles.values():
            role.close()
        self._let_go()
        shutil.rmtree(Path(tempfile.gettempdir()) / directory, ignore_errors=True)

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _open_edge(self, edge: Edge, own: set[str], path: str, device: torch.device) -> list[tuple[Channel, str]]:
        sends, receives = edge.source in own, edge.target in own
        if not (sends or receives):
            return []
        channel: Channel
        if sends and receives:
            channel = LocalChannel(edge.spec, edge.slots, device)
            names = [edge.source, edge.target]
        else:
            end: End = "send" if sends else "recv"
            channel = open_channel(
                edge.kind, edge.spec, end, path, slots=edge.slots, device=device, timeout=_OPEN_TIMEOUT
            )
            names = [edge.source if sends else edge.target]
        with self._lock:
            self._channels.append(channel)
        return [(channel, name) for name in names]

    def _close_channels(self) -> None:
        with self._lock:
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _run_loop(self, loop: Loop, failures: list[str]) -> None:
        try:
            loop.run()
        except ChannelAborted:
            pass
        except Exception:
            failures.append(traceback.format_exc())
        finally:
            # When one role ends, all end: neighbours in other processes learn it from their channels.
            for channel in self._channels:
                channel.abort()
            for role in self._roles.values():
                role.abort()

    def _recorder(self, name: str, span: int) -> Callable[[Header], None]:
        role, last = self._roles[name], span == len(self._topology.spans) - 1
        tags = {"stage": self._topology.spans[span]}
        since = 0

        def record(header: Header) -> None:
            nonlocal since
            work = header.stamps[2 * span + 1] - header.stamps[2 * span]
            self._seconds.observe(work, tags)
            self._shares.observe(work / self._clock.seconds, tags)
            if last and header.frames:
                self._trace.add(header)
                self._latency.observe(header.stamps[2 * span] - header.stamps[0])
                if (missed := role.misses()) > self._missed:
                    self._misses.inc(missed - self._missed)
                    self._missed = missed
            since += 1
            if since >= self._snapshot_every or name not in self._states:
                since = 0
                self._states[name] = role.snapshot()

        return record
