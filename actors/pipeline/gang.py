"""All processes of one session: places, starts and watches them, and rebuilds them when one dies. Knows Ray."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.pipeline.header import NONE_CANCELLED
from actors.pipeline.session import SessionSpec
from actors.pipeline.stage import Stage
from actors.pipeline.topology import Topology
from actors.pipeline.trace import Trace
from characters.errors import UserError

log = logging.getLogger(__name__)

T = TypeVar("T")
State = Literal["starting", "running", "rebuilding", "failed", "stopped"]

# Loading a 57B model takes minutes.
_LOAD_TIMEOUT = 900.0
_STEP_TIMEOUT = 30.0
# The parts of a large model meet, fill their caches and capture their graphs.
_CONNECT_TIMEOUT = 180.0
_ABORT_TIMEOUT = 5.0


class GangFailed(Exception):
    """The session cannot go on: its processes kept dying, or could not be started."""


class Gang:
    """One session on its processes.

    Args:
        topology: what to start.
        factory: see `Stage`.
        group: a placement group whose bundles from `first_bundle` on are the topology's. If None, the gang makes one
            and removes it at the end.
        first_bundle: 1 in a Serve replica's group, whose bundle 0 is the replica's.
        on_state: called with each new state and a reason, from the gang's thread.
        health_period: seconds between two health checks.
        health_timeout: seconds without an answer after which a stage counts as dead and is killed.
        stall_timeout: seconds without a chunk in any stage after which all stages are connected anew, though each
            answers: even a silent character makes chunks.
        max_rebuilds: that are allowed within `rebuild_window` seconds; one more, and the session has failed.
    """

    _session: SessionSpec | None

    def __init__(
        self,
        topology: Topology,
        *,
        factory: str = "actors.room.factory:build_roles",
        group: PlacementGroup | None = None,
        first_bundle: int = 0,
        on_state: Callable[[State, str], object] = lambda state, reason: None,
        health_period: float = 1.0,
        health_timeout: float = 10.0,
        stall_timeout: float = 20.0,
        max_rebuilds: int = 5,
        rebuild_window: float = 60.0,
    ) -> None:
        self.topology = topology
        self.state: State = "starting"
        self.reason = ""
        self._factory, self.on_state = factory, on_state
        self._group, self._own_group, self._first_bundle = group, group is None, first_bundle
        self._health_period, self._health_timeout = health_period, health_timeout
        self._stall_timeout = stall_timeout
        self._moved, self._moved_at = 0, 0.0  # chunks that all roles have handled, and when that number last grew
        self._max_rebuilds, self._rebuild_window = max_rebuilds, rebuild_window
        self._epoch = 0
        self._stages: dict[str, ActorHandle] = {}
        self._names: dict[str, str] = {}  # stage -> name of its actor
        self._forget()
        self._stopping = threading.Event()
        self._over = False  # `stop` was called
        self._supervisor: threading.Thread | None = None

    def prepare(self, timeout: float = 60.0) -> None:
        """Place the processes and load their roles, so that a session can start at once. `start` does it otherwise.

        Args:
            timeout: seconds to wait for resources.

        Raises:
            UserError: no host has room for the bundles, or the model cannot be loaded.
            GangFailed: a process died while it loaded.
        """
        with self._failures_end_it():
            if self._group is None:
                self._group = placement_group(self.topology.bundles, strategy="STRICT_PACK")
            if not self._group.wait(timeout):
                raise UserError(f"no host has room for {self.topology.bundles} within {timeout:.0f} s")
            self._load_stages([stage.name for stage in self.topology.stages])

    def check(self, timeout: float = 5.0) -> None:
        """Ask every process for a sign of life.

        Raises:
            RayError: a process has died, or does not answer.
        """
        _all([stage.pid.remote() for stage in list(self._stages.values())], timeout)

    def start(self, session: SessionSpec, timeout: float = 60.0) -> None:
        """Place, load, connect and run the stages; then a thread watches them until `stop`.

        Args:
            session: what to show, and where.
            timeout: seconds to wait for resources.

        Raises:
            UserError: no host has room for the bundles, or a role refuses the session. The processes stay then, for
                `renew` and the next one.
            GangFailed: a process died while it started.
        """
        if not self._stages:
            self.prepare(timeout)
        self._session = session
        refused: UserError | None = None
        with self._failures_end_it():
            try:
                self._reset_stages(list(self._stages))
            except RayTaskError as error:
                if not isinstance(error.cause, UserError):
                    raise
                refused = error.cause
            else:
                self._connect()
        if refused is not None:
            raise refused
        self._become("running", "started")
        self._supervisor = threading.Thread(target=self._supervise, name="gang", daemon=True)
        self._supervisor.start()

    @contextlib.contextmanager
    def _failures_end_it(self) -> Iterator[None]:
        try:
            yield
        except (RayError, UserError) as e:
            self._end("failed", _reason(e))
            cause = e.cause if isinstance(e, RayTaskError) else e
            if isinstance(cause, UserError):
                raise cause from None
            raise GangFailed(self.reason) from e

    def stop(self) -> None:
        """End the session and all its processes."""
        self._over = True
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.join()
        if self.state not in ("failed", "stopped"):
            self._end("stopped", "stopped")

    def renew(self, topology: Topology) -> None:
        """End the session that runs, and get ready for another.

        The room's process, which knew its user, is replaced. The others keep their weights and forget the session.

        Args:
            topology: of the next session; it may differ only in what the room's process reads, such as the voice.

        Raises:
            GangFailed: processes could not be stopped or loaded; all of them have been ended.
            UserError: the model cannot be loaded.
        """
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.join()
            self._supervisor = None
        if self.state in ("failed", "stopped"):
            raise GangFailed(self.reason)
        self._stopping.clear()
        if self._over:  # meanwhile, in another thread
            self._stopping.set()
        with self._failures_end_it():
            gone = self._disconnect()[0] if self._runs else []
            _all(
                [s.close.remote(self._directory) for name, s in self._stages.items() if name not in gone],
                _ABORT_TIMEOUT,
            )
            room = self.topology.stage_of("publisher").name
            if room not in gone:
                ray.kill(self._stages[room])
                gone.append(room)
            self.topology = topology
            self._forget()
            self._become("starting", "ready for another session")
            self._load_stages(gone)

    def _forget(self) -> None:
        """As if there had been no session."""
        self._directory = f"characters-{uuid.uuid4().hex[:12]}"
        self._runs: dict[Any, str] = {}  # future of run() -> stage
        self._states: dict[str, dict[str, Any]] = {}
        self._cancelled = NONE_CANCELLED
        self._session = None
        self._rebuilds: deque[float] = deque()

    def cancel(self, response_id: int) -> None:
        """Response `response_id` and older ones are over: every stage drops their chunks from its next one on."""
        self._cancelled = max(self._cancelled, response_id)
        for stage in list(self._stages.values()):
            stage.cancel.remote(response_id)

    def alone(self, timeout: float = 5.0) -> float:
        """Seconds since the last user left the room; 0 while one is there.

        Raises:
            RayError: the room's process is not there (a new one may be in a moment), or does not answer.
            KeyError: the session has ended.
        """
        answer: Any = self.handle("publisher").alone.remote()
        return float(ray.get(answer, timeout=timeout))

    def ended(self, timeout: float = 5.0) -> str:
        """Why the session is over by itself; "" while it goes on. Raises as `alone` does."""
        answer: Any = self.handle("publisher").ended.remote()
        return str(ray.get(answer, timeout=timeout))

    def ask(self, role: str, question: Callable[[Any], T]) -> T:
        """What `question` returns for a role, in the role's own process; for tests and benches.

        Args:
            role: its name.
            question: takes the role; it and its answer travel by pickle. It runs beside the role's loop.

        Raises:
            RayError: the role's process is not there (a new one may be in a moment), or the question raised.
        """
        answer: Any = self.handle(role).ask.remote(role, question)
        found: T = ray.get(answer, timeout=10.0)
        return found

    def handle(self, role: str) -> ActorHandle:
        """The actor that runs a role now; after a rebuild it may be another one."""
        return self._stages[self.topology.stage_of(role).name]

    def name(self, role: str) -> str:
        """Name of the actor that runs a role now, for `ray.get_actor` in the same namespace."""
        return self._names[self.topology.stage_of(role).name]

    def trace(self) -> Trace:
        """The chunks and turns since the room's process was started."""
        answer: Any = self.handle("publisher").trace.remote()
        return ray.get(answer, timeout=10.0)

    def _load_stages(self, names: list[str]) -> None:
        """Start processes and load their roles."""
        assert self._group is not None
        actor_class: Any = Stage  # ray.remote returns a class without types
        started: list[ActorHandle] = []
        for i, stage in enumerate(self.topology.stages):
            if stage.name in names:
                strategy = PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=self._first_bundle + i
                )
                name = self._names[stage.name] = f"{stage.name}-{uuid.uuid4().hex[:12]}"
                options = {"name": name, "num_cpus": stage.bundle["CPU"], "num_gpus": stage.bundle.get("GPU", 0)}
                actor = actor_class.options(scheduling_strategy=strategy, **options).remote(
                    self.topology, stage.name, self._factory
                )
                self._stages[stage.name] = actor
                started.append(actor)
        _all([actor.load.remote() for actor in started], _LOAD_TIMEOUT, self._stopping)

    def _reset_stages(self, names: list[str]) -> None:
        """Start the session in loaded stages, from the newest snapshots that the gang has."""
        assert self._session is not None
        started = [self._stages[name] for name in names]
        session = ray.put(self._session)
        _all([actor.reset.remote(session) for actor in started], _STEP_TIMEOUT, self._stopping)
        _all([actor.restore.remote(self._states, self._cancelled) for actor in started], _STEP_TIMEOUT, self._stopping)

    def _connect(self) -> None:
        """Open all channels and run."""
        self._epoch += 1
        stages = self._stages
        # A role may have cancelled a response by itself (see StageContext.cancel).
        self._cancelled = max(
            [self._cancelled, *(state.get("cancelled", NONE_CANCELLED) for state in self._states.values())]
        )
        peers = {name: [peer for other, peer in stages.items() if other != name] for name in stages}
        _all([stage.introduce.remote(peers[name]) for name, stage in stages.items()], _STEP_TIMEOUT, self._stopping)
        opened = [stage.open.remote(self._directory, self._epoch, self._cancelled) for stage in stages.values()]
        _all(opened, _CONNECT_TIMEOUT, self._stopping)
        self._runs = {stage.run.remote(): name for name, stage in stages.items()}
        self._moved, self._moved_at = 0, time.monotonic()

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            # run() only ever ends when something is wrong, and the future of a dead process ends at once.
            done, _ = ray.wait(list(self._runs), num_returns=1, timeout=self._health_period)
            if self._stopping.is_set():
                return
            if not done:
                self._look_after()
                continue
            if not self._rebuild(self._runs[done[0]]):
                return

    def _look_after(self) -> None:
        """Ask every stage for its snapshots, kill stages that do not answer, and check that chunks move."""
        asked: dict[Any, str] = {stage.state.remote(): name for name, stage in self._stages.items()}
        counted: Any = [stage.counts.remote() for stage in self._stages.values()]
        done, hung = ray.wait(list(asked), num_returns=len(asked), timeout=self._health_timeout)
        for answer in done:
            with contextlib.suppress(RayError):  # a death shows in run()'s future
                self._states |= ray.get(answer)
        for answer in hung:
            if not self._stopping.is_set():
                log.warning("stage %s does not answer: killing it", asked[answer])
                ray.kill(self._stages[asked[answer]])
        if not hung:
            with contextlib.suppress(RayError):
                counts = ray.get(counted, timeout=self._health_timeout)
                self._look_for_a_stall(sum(sum(pair) for count in counts for pair in count.values()))

    def _look_for_a_stall(self, moved: int) -> None:
        now = time.monotonic()
        if moved != self._moved:
            self._moved, self._moved_at = moved, now
        elif now - self._moved_at > self._stall_timeout:
            log.warning("no chunk has moved for %.0f s: connecting anew", now - self._moved_at)
            self._moved_at = now
            for stage in self._stages.values():
                stage.abort.remote()

    def _rebuild(self, first: str) -> bool:
        """Replace the dead stages and connect all anew, until they run or there have been too many attempts."""
        reason = f"stage {first} ended"
        while not self._stopping.is_set():
            now = time.monotonic()
            self._rebuilds.append(now)
            while now - self._rebuilds[0] > self._rebuild_window:
                self._rebuilds.popleft()
            if len(self._rebuilds) > self._max_rebuilds:
                self._end("failed", f"{len(self._rebuilds)} failures within {self._rebuild_window:.0f} s: {reason}")
                return False
            try:
                dead, why = self._disconnect()
                reason = why or reason
                log.warning("session rebuilding: %s", reason)
                self._become("rebuilding", reason)
                survivors = [stage for name, stage in self._stages.items() if name not in dead]
                _all([stage.resume.remote() for stage in survivors], _STEP_TIMEOUT, self._stopping)
                self._load_stages(dead)
                self._reset_stages(dead)
                self._connect()
            except RayError as e:
                reason = _reason(e)
                log.warning("rebuilding failed: %s", reason)
                continue
            self._become("running", f"rebuilt {', '.join(dead) or 'the channels'} after: {reason}")
            return True
        return False

    def _disconnect(self) -> tuple[list[str], str]:
        """Abort every channel and wait until every stage has stopped.

        Returns:
            The stages that must be replaced, because a role in them raised, they died, or they did not stop and were
            killed here; and why the first of them ended.
        """
        aborts: list[Any] = [stage.abort.remote() for stage in self._stages.values()]
        ray.wait(aborts, num_returns=len(aborts), timeout=_ABORT_TIMEOUT)
        runs = {name: run for run, name in self._runs.items()}
        _, stuck = ray.wait(list(self._runs), num_returns=len(self._runs), timeout=_ABORT_TIMEOUT)
        dead, why = [], ""
        for name, stage in self._stages.items():
            try:
                if runs[name] in stuck:
                    raise GetTimeoutError(f"stage {name} does not stop")
                ray.get(runs[name])
                ray.get(stage.state.remote(), timeout=_ABORT_TIMEOUT)
            except RayError as e:
                if isinstance(e, RayTaskError):
                    log.error("%s", e)  # with the traceback of the role that raised
                if isinstance(e, RayActorError) or not why:
                    why = f"stage {name}: {_reason(e)}"
                dead.append(name)
                ray.kill(stage)
        return dead, why

    def _end(self, state: State, reason: str) -> None:
        """End every process and release the placement group."""
        stages = list(self._stages.values())
        with contextlib.suppress(RayError):  # a stage that fails here is killed below all the same
            _all([stage.abort.remote() for stage in stages], _ABORT_TIMEOUT)
        with contextlib.suppress(RayError):  # roles are closed once their loops have ended
            _all(list(self._runs), _ABORT_TIMEOUT)
        with contextlib.suppress(RayError):
            _all([stage.close.remote(self._directory) for stage in stages], _ABORT_TIMEOUT)
        for stage in stages:
            ray.kill(stage)
        if self._own_group and self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        self._stages = {}
        self._runs = {}
        self._become(state, reason)

    def _become(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        log.info("session %s: %s", state, reason)
        self.on_state(state, reason)


def _all(answers: list[Any], timeout: float, stopping: threading.Event | None = None) -> None:
    """Wait for all answers, then raise the first error among them. All errors are read: Ray prints unread ones.

    Args:
        answers: futures.
        timeout: seconds for all of them together.
        stopping: when it is set, the wait ends as at the timeout.

    Raises:
        RayError: a call failed or took too long.
    """
    if not answers:
        return
    give_up, late = time.monotonic() + timeout, answers
    while late and (left := give_up - time.monotonic()) > 0 and not (stopping and stopping.is_set()):
        _, late = ray.wait(answers, num_returns=len(answers), timeout=min(left, 0.5) if stopping else left)
    errors: list[RayError] = []
    for answer in answers:
        if answer not in late:
            try:
                ray.get(answer)
            except RayError as e:
                errors.append(e)
    if errors:
        raise errors[0]
    if late:
        raise GetTimeoutError(f"a stage took longer than {timeout:.0f} s")


def _reason(error: Exception) -> str:
    """The last line of an error's text, which says what happened."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
