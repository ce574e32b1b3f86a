"""All processes of one session: places, starts and watches them, and rebuilds them when one dies. Knows Ray."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
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

from actors.pipeline.folder import PREFIX, sweep
from actors.pipeline.header import NONE_CANCELLED
from actors.pipeline.heartbeat import BEAT_SECONDS, Heartbeats
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
# What is done once, such as opening a library, can keep everything else in a process from running, its heart included.
_PATIENT_SILENCE = 8.0
_STEADY_CHUNKS = 8  # that the roles of a stage have handled together
_REFILL_SECONDS = 30.0  # between two attempts to load a standby


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
        health_period: seconds between two questions for the stages' snapshots.
        health_timeout: seconds without an answer after which a stage counts as dead and is killed.
        silence: seconds without a heartbeat after which a stage that runs counts as dead and is killed.
        stall_timeout: seconds without a chunk in any stage after which all stages are connected anew, though each
            lives: even a silent character makes chunks. Before the first chunk it is four times as long.
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
        silence: float = 1.2,
        stall_timeout: float = 5.0,
        max_rebuilds: int = 5,
        rebuild_window: float = 60.0,
    ) -> None:
        self.topology = topology
        self.state: State = "starting"
        self.reason = ""
        self._factory, self.on_state = factory, on_state
        self._group, self._own_group, self._first_bundle = group, group is None, first_bundle
        self._health_period, self._health_timeout = health_period, health_timeout
        self._silence, self._stall_timeout = silence, stall_timeout
        self._moved, self._moved_at = 0, 0.0  # chunks that all roles have handled, and when that number last grew
        self._heartbeats = Heartbeats()
        self._asked: dict[Any, tuple[str, float]] = {}  # future of state() -> its stage, and when it was asked for
        self._max_rebuilds, self._rebuild_window = max_rebuilds, rebuild_window
        self._epoch = 0
        self._stages: dict[str, ActorHandle] = {}
        self._standbys: dict[str, ActorHandle] = {}
        self._loading: dict[str, Any] = {}  # standby -> future of load()
        self._refilled = 0.0
        self._names: dict[str, str] = {}  # stage or standby -> name of its actor
        # Stage or standby -> its bundle. The two change places when one becomes the other.
        everybody = [*(stage.name for stage in topology.stages), *(standby.name for standby in topology.standbys)]
        self._places = {name: place for place, name in enumerate(everybody)}
        self._forget()
        self._stopping, self._abandoned = threading.Event(), threading.Event()
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
            sweep()
            self._refill()
            self._load_stages([stage.name for stage in self.topology.stages], from_standby=False)
            self._wait(list(self._loading.values()), _LOAD_TIMEOUT, patience=math.inf)

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
            UserError: no host has room for the bundles, or a role refuses the session. The processes stay then.
            GangFailed: a process died while it started, or it was abandoned. `renew` puts that right.
        """
        if not self._stages:
            self.prepare(timeout)
        self._session = session
        try:
            self._reset_stages(list(self._stages), self._abandoned)
            self._connect()
        except RayError as error:
            self._raise(error)
        self._become("running", "started")
        self._supervisor = threading.Thread(target=self._supervise, name="gang", daemon=True)
        self._supervisor.start()

    @contextlib.contextmanager
    def _failures_end_it(self) -> Iterator[None]:
        try:
            yield
        except (RayError, UserError) as e:
            self._end("failed", _reason(e))
            self._raise(e)

    @staticmethod
    def _raise(error: Exception) -> None:
        cause = _cause(error)
        raise cause from (None if isinstance(cause, UserError) else error)

    def abandon(self) -> None:
        """Nobody waits for the session that starts: `start` need not wait for those who join it. From any thread."""
        self._abandoned.set()

    def stop(self) -> None:
        """End the session and all its processes."""
        self._over = True
        self._abandoned.set()
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
        self._abandoned.clear()
        if self._over:  # meanwhile, in another thread
            self._abandoned.set()
            self._stopping.set()
        with self._failures_end_it():
            room = self.topology.stage_of("publisher").name
            gone = self._disconnect()[0] if self._runs else self._dead()
            # After a start that was given up they may still be at it; the room's process may wait for its room.
            others = [stage for name, stage in self._stages.items() if name not in (*gone, room)]
            self._wait([stage.introduce.remote([]) for stage in others], _STEP_TIMEOUT)
            self._wait(
                [s.close.remote(self._directory) for name, s in self._stages.items() if name not in gone],
                _ABORT_TIMEOUT,
            )
            if room not in gone:
                self._kill(room)
                gone.append(room)
            if topology != self.topology:  # what the standbys have loaded is of the old one
                for name in list(self._standbys):
                    self._kill(name)
            self.topology = topology
            self._forget()
            sweep()
            self._become("starting", "ready for another session")
            # The standbys are for a talk that goes on; here nobody waits for a picture.
            self._load_stages(gone, from_standby=False)
            self._refill()

    def _forget(self) -> None:
        """As if there had been no session."""
        self._directory = f"{PREFIX}{uuid.uuid4().hex[:12]}"
        self._runs: dict[Any, str] = {}  # future of run() -> stage
        self._states: dict[str, dict[str, Any]] = {}
        self._cancelled = NONE_CANCELLED
        self._session = None
        self._rebuilds: deque[float] = deque()
        self._asked, self._fetched = {}, 0.0

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

    def _load_stages(self, names: list[str], from_standby: bool = True) -> None:
        """Start processes for stages that have none and load their roles, or let standbys become them."""
        started: list[str] = []
        for stage in self.topology.stages:
            if stage.name in names and not (from_standby and self._take_standby(stage.name)):
                self._stages[stage.name] = self._spawn(stage.name, (stage.name,))
                started.append(stage.name)
        self._wait([self._stages[name].load.remote() for name in started], _LOAD_TIMEOUT, patience=math.inf)
        self._wait([self._stages[name].become.remote(name) for name in started], _STEP_TIMEOUT)

    def _spawn(self, process: str, stages: tuple[str, ...]) -> ActorHandle:
        """Start an actor that can become these stages, in the bundle of a stage or standby."""
        assert self._group is not None
        place = self._places[process]
        bundle = self.topology.bundles[place]
        strategy = PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=self._first_bundle + place
        )
        name = self._names[process] = f"{process}-{uuid.uuid4().hex[:12]}"
        options = {"name": name, "num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0)}
        actor_class: Any = Stage  # ray.remote returns a class without types
        actor: ActorHandle = actor_class.options(scheduling_strategy=strategy, **options).remote(
            self.topology, stages, self._factory, self._heartbeats.address(name)
        )
        return actor

    def _take_standby(self, stage: str) -> bool:
        """Let a standby become a stage; False if there is none that can. One that still loads is nearly there."""
        for standby in self.topology.standbys:
            actor = self._standbys.get(standby.name)
            if actor is None or stage not in standby.stages:
                continue
            try:
                if self._heartbeats.silent(self._names[standby.name]) > self._silence:
                    raise GetTimeoutError(f"{standby.name} is silent")
                self._wait([self._loading[standby.name]], _LOAD_TIMEOUT, patience=math.inf)
                self._wait([actor.become.remote(stage)], _ABORT_TIMEOUT)
            except RayError as error:
                log.warning("%s cannot become %s: %s", standby.name, stage, _reason(error))
                self._kill(standby.name)
                continue
            self._stages[stage] = self._standbys.pop(standby.name)
            self._names[stage] = self._names.pop(standby.name)
            self._places[stage], self._places[standby.name] = self._places[standby.name], self._places[stage]
            del self._loading[standby.name]
            return True
        return False

    def _refill(self) -> None:
        """Begin to load the standbys that are not there."""
        for standby in self.topology.standbys:
            if standby.name not in self._standbys:
                actor = self._standbys[standby.name] = self._spawn(standby.name, standby.stages)
                self._loading[standby.name] = actor.load.remote()
        self._refilled = time.monotonic()

    def _kill(self, process: str) -> None:
        """End the process of a stage or standby, whatever it does: Ray would wait for one that is stopped."""
        name = self._names[process]
        if process in self._standbys:
            ray.kill(self._standbys.pop(process))
            del self._loading[process]
        else:
            ray.kill(self._stages[process])
        if (pid := self._heartbeats.pid(name)) is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._heartbeats.forget(name)

    def _dead(self) -> list[str]:
        """Stages that do not answer, while no session runs. They are ended."""
        asked: dict[Any, str] = {stage.pid.remote(): name for name, stage in self._stages.items()}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=_ABORT_TIMEOUT)
        dead = [asked[answer] for answer in late]
        for answer in done:
            try:
                ray.get(answer)
            except RayError:
                dead.append(asked[answer])
        for name in dead:
            self._kill(name)
        return dead

    def _reset_stages(self, names: list[str], stopping: threading.Event | None = None) -> None:
        """Start the session in loaded stages, from the newest snapshots that the gang has."""
        assert self._session is not None
        started = [self._stages[name] for name in names]
        session = ray.put(self._session)
        self._wait([actor.reset.remote(session) for actor in started], _STEP_TIMEOUT, stopping)
        self._wait([actor.restore.remote(self._states, self._cancelled) for actor in started], _STEP_TIMEOUT)

    def _connect(self) -> None:
        """Open all channels and run."""
        self._epoch += 1
        stages = self._stages
        # A role may have cancelled a response by itself (see StageContext.cancel).
        self._cancelled = max(
            [self._cancelled, *(state.get("cancelled", NONE_CANCELLED) for state in self._states.values())]
        )
        peers = {name: [peer for other, peer in stages.items() if other != name] for name in stages}
        self._wait([stage.introduce.remote(peers[name]) for name, stage in stages.items()], _STEP_TIMEOUT)
        opened = [stage.open.remote(self._directory, self._epoch, self._cancelled) for stage in stages.values()]
        self._wait(opened, _CONNECT_TIMEOUT, patience=math.inf)
        self._runs = {stage.run.remote(): name for name, stage in stages.items()}
        self._moved, self._moved_at = 0, time.monotonic() + 3 * self._stall_timeout
        self._heartbeats.restart()

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            # run() only ever ends when something is wrong, and the future of a dead process ends at once.
            done, _ = ray.wait(list(self._runs), num_returns=1, timeout=BEAT_SECONDS)
            if self._stopping.is_set():
                return
            if not done:
                self._look_after()
                continue
            if not self._rebuild(self._runs[done[0]]):
                return

    def _look_after(self) -> None:
        """Kill stages that are silent or do not answer, fetch snapshots, check that chunks move, keep standbys."""
        self._heartbeats.look()
        for name in list(self._stages):
            # Until then it may still do what is done once.
            steady = self._heartbeats.moved(self._names[name]) >= _STEADY_CHUNKS
            limit = self._silence if steady else _PATIENT_SILENCE
            if (seconds := self._heartbeats.silent(self._names[name])) > limit:
                log.warning("stage %s has been silent for %.1f s: killing it", name, seconds)
                self._kill(name)
                return
        self._look_for_a_stall(sum(self._heartbeats.moved(self._names[name]) for name in self._stages))
        self._fetch_states()
        self._look_after_standbys()

    def _fetch_states(self) -> None:
        now = time.monotonic()
        if not self._asked:
            if now - self._fetched >= self._health_period:
                self._fetched = now
                self._asked = {stage.state.remote(): (name, now) for name, stage in self._stages.items()}
            return
        done, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for answer in done:
            del self._asked[answer]
            with contextlib.suppress(RayError):  # a death shows in run()'s future
                self._states |= ray.get(answer)
        for name, asked_at in self._asked.values():
            if now - asked_at > self._health_timeout:
                log.warning("stage %s does not answer: killing it", name)
                self._asked = {}
                self._kill(name)
                return

    def _look_after_standbys(self) -> None:
        if time.monotonic() - self._refilled < _REFILL_SECONDS:
            return
        for name in list(self._standbys):
            try:
                if not ray.wait([self._loading[name]], timeout=0)[0]:
                    continue
                ray.get(self._loading[name])
                if self._heartbeats.silent(self._names[name]) > self._health_timeout:
                    raise GetTimeoutError(f"{name} is silent")
            except RayError as error:
                log.warning("%s has ended: %s", name, _reason(error))
                self._kill(name)
        self._refill()

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
                self._asked = {}
                survivors = [stage for name, stage in self._stages.items() if name not in dead]
                self._wait([stage.resume.remote() for stage in survivors], _STEP_TIMEOUT)
                self._load_stages(dead)
                self._reset_stages(dead)
                self._connect()
            except RayError as e:
                reason = _reason(e)
                log.warning("rebuilding failed: %s", reason)
                continue
            self._become("running", f"rebuilt {', '.join(dead) or 'the channels'} after: {reason}")
            self._refill()
            return True
        return False

    def _disconnect(self) -> tuple[list[str], str]:
        """Abort every channel and wait until every stage has stopped.

        Returns:
            The stages that must be replaced, because a role in them raised, they died, or they did not stop and were
            killed here; and why the first of them ended.
        """
        aborts: list[Any] = [stage.abort.remote() for stage in self._stages.values()]
        self._await_all(aborts, _ABORT_TIMEOUT)
        runs = {name: run for run, name in self._runs.items()}
        stuck = self._await_all(list(self._runs), _ABORT_TIMEOUT)
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
                self._kill(name)
        return dead, why

    def _wait(
        self,
        answers: list[Any],
        timeout: float,
        stopping: threading.Event | None = None,
        patience: float = _PATIENT_SILENCE,
    ) -> None:
        """Wait for all answers, or until the gang is to stop, or `stopping` is set. See `_read` for what it raises."""
        _read(answers, self._await_all(answers, timeout, stopping or self._stopping, patience), timeout)

    def _await_all(
        self,
        answers: list[Any],
        timeout: float,
        stopping: threading.Event | None = None,
        patience: float = _PATIENT_SILENCE,
    ) -> list[Any]:
        """Wait for all answers. Returns those that are late.

        Args:
            answers: futures.
            timeout: seconds.
            stopping: ends the wait when it is set.
            patience: seconds without a heartbeat after which a process is killed meanwhile.
        """
        give_up, late = time.monotonic() + timeout, answers
        self._heartbeats.restart()
        while late and (left := give_up - time.monotonic()) > 0 and not (stopping and stopping.is_set()):
            _, late = ray.wait(answers, num_returns=len(answers), timeout=min(left, BEAT_SECONDS))
            self._heartbeats.look()
            for name in self._stages:
                if self._heartbeats.silent(self._names[name]) > patience:
                    log.warning("stage %s is silent: killing it", name)
                    self._kill(name)
        return late

    def _end(self, state: State, reason: str) -> None:
        """End every process and release the placement group."""
        stages = list(self._stages.values())
        for name in list(self._standbys):
            self._kill(name)
        with contextlib.suppress(RayError):  # a stage that fails here is killed below all the same
            _all([stage.abort.remote() for stage in stages], _ABORT_TIMEOUT)
        with contextlib.suppress(RayError):  # roles are closed once their loops have ended
            _all(list(self._runs), _ABORT_TIMEOUT)
        with contextlib.suppress(RayError):
            _all([stage.close.remote(self._directory) for stage in stages], _ABORT_TIMEOUT)
        for name in list(self._stages):
            self._kill(name)
        if self._own_group and self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        self._heartbeats.close()
        self._stages = {}
        self._runs = {}
        self._become(state, reason)

    def _become(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        log.info("session %s: %s", state, reason)
        self.on_state(state, reason)


def _all(answers: list[Any], timeout: float) -> None:
    """Wait for all answers, see `_read`."""
    _, late = ray.wait(answers, num_returns=len(answers), timeout=timeout) if answers else ([], [])
    _read(answers, late, timeout)


def _read(answers: list[Any], late: list[Any], timeout: float) -> None:
    """Raise the first error among answers. All errors are read: Ray prints unread ones.

    Args:
        answers: futures.
        late: those among them that have not come.
        timeout: seconds that they were waited for.

    Raises:
        RayError: a call failed or took too long.
    """
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


def _cause(error: Exception) -> Exception:
    """What a caller of the gang is to be told: the user's error, if it is one."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return cause if isinstance(cause, UserError) else GangFailed(_reason(error))


def _reason(error: Exception) -> str:
    """The last line of an error's text, which says what happened."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
