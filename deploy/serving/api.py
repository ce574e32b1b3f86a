"""The HTTP interface: the page, characters, sessions, tokens, webhooks."""

from __future__ import annotations

import hmac
import ipaddress
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from characters.errors import did_you_mean
from characters.model.config import models_for
from deploy.serving.dialects import anam, bithuman, form, inference, keyframe, runway, runway_avatars
from deploy.serving.gate import ApiError, Gate
from deploy.serving.session_manager import LivekitGone, LivekitRefused, SessionManager
from deploy.serving.sessions import NotAdmitted, RoomTaken, Session, State
from deploy.serving.tokens import CHARACTER, user_token
from deploy.serving.webhook import WebhookRejected, WebhookVerifier

WEB = Path(__file__).resolve().parents[1] / "web"
_WEBHOOK = "/livekit/webhook"
_WEBHOOK_BODY = 1_000_000
_LOOPBACK = ("address 127.0.0.1", "address ::/64")
_NAME_BYTES = 256  # what LiveKit allows


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must not contain control characters")
    return text


def _short(text: str) -> str:
    if len(text.encode()) > _NAME_BYTES:
        raise ValueError(f"must not be longer than {_NAME_BYTES} bytes")
    return text


Text = Annotated[str, AfterValidator(_printable)]
Name = Annotated[Text, AfterValidator(_short), Field(max_length=128)]


class ErrorView(BaseModel):
    """Why something was refused or has failed."""

    code: str = Field(description="Stable; for programs.")
    message: str = Field(description="For people.")


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: ErrorView


class CharacterView(BaseModel):
    """A character to choose."""

    slug: str
    name: str
    description: str
    greeting: str
    portrait_url: str
    portrait: str = Field(description="drawn, or photograph.")
    animated: bool = Field(description="Whether the model that runs animates such portraits, as far as is known.")
    models: list[str] = Field(description="Models that do.")


class NewSession(BaseModel):
    """A request for a session: who wants to talk to which character."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"character": "amara", "participant_name": "Ada"}]}
    )
    character: Name = Field(description="A slug from GET /v1/characters.")
    participant_name: Name = ""


class SessionView(BaseModel):
    """A session as its user sees it."""

    id: str
    character: str
    state: State
    position: int | None = Field(description="In the queue, 1 = next; null when not queued.")
    estimated_wait_s: float | None = Field(description="Seconds; null when not queued or not known.")
    room_name: str
    server_url: str | None = Field(description="LiveKit server; null while queued or over.")
    participant_token: str | None = Field(description="To join the room with; null while queued or over.")
    error: ErrorView | None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "h2XyZ0aQ9bLk3mNp",
                    "character": "amara",
                    "state": "READY",
                    "position": None,
                    "estimated_wait_s": None,
                    "room_name": "characters-Vd3w8mUTqKzR1yB6cPxN4sLa",
                    "server_url": "ws://127.0.0.1:7880",
                    "participant_token": "eyJhbGciOi...",
                    "error": None,
                }
            ]
        }
    )


class TokenRequest(BaseModel):
    """LiveKit's TokenSource request. The character is named by `participant_attributes.character`, by the
    `agent_name` of the first agent in `room_config`, or is the first of the gallery."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"participant_name": "Ada", "participant_attributes": {"character": "amara"}}]}
    )
    room_name: Name = ""
    participant_identity: Name = ""
    participant_name: Name = ""
    participant_metadata: Annotated[str, Field(max_length=4096)] = ""
    participant_attributes: dict[Name, Annotated[str, Field(max_length=1024)]] = Field(
        default_factory=dict, max_length=32
    )
    room_config: dict[str, JsonValue] = Field(default_factory=dict)


class TokenAnswer(BaseModel):
    """LiveKit's TokenSource answer."""

    server_url: str
    participant_token: str


class Health(BaseModel):
    """How the application is."""

    status: str
    application: str = "characters"
    livekit: bool
    pipelines: int
    running: int
    queued: int
    target: int = Field(description="Pipelines asked for.")
    capacity: int = Field(description="Sessions that the machines hold, each within its deadline.")
    shortfall: str = Field(description="What is asked for and cannot be provided; empty if nothing.")
    note: str = Field(description="A remark on these figures; empty if there is none.")
    random_weights: bool = Field(description="The pictures are noise: the model has no trained weights.")


def create_api(manager: SessionManager) -> FastAPI:
    """The HTTP application around a session manager. It starts the manager and closes it."""
    settings = manager.settings
    verifier = WebhookVerifier(settings.livekit)
    keys = [*settings.tenant_keys.items()] + ([("", settings.api_key)] if settings.api_key else [])

    def holder_of(headers: Headers) -> str:
        """The name of the key's holder."""
        own = headers.get("x-api-key") or headers.get("api-secret")  # the latter is bitHuman's
        given = own or headers.get("authorization", "").removeprefix("Bearer ").strip()
        found = [name for name, key in keys if hmac.compare_digest(given.encode(), key.encode())]
        if keys and not found:
            raise ApiError(401, "unauthorised", "this server wants an API key: X-API-Key, or Authorization: Bearer")
        return found[0] if found else ""

    session_keys = runway.Keys(settings.livekit.secret)

    def holder_or_user(headers: Headers) -> None:
        if not session_keys.genuine(headers):
            holder_of(headers)

    def signed(headers: Headers) -> None:
        try:
            verifier.check(headers.get("authorization"))
        except WebhookRejected as rejected:
            raise ApiError(rejected.status, rejected.code, str(rejected)) from None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await manager.start()
        yield
        await manager.close()

    app = FastAPI(
        lifespan=lifespan,
        title="characters",
        version="1",
        docs_url=None,  # its page runs scripts of another site
        redoc_url=None,
        description="Talk to a character in a LiveKit room.",
        responses={
            code: {"model": ErrorAnswer} for code in (400, 401, 404, 405, 408, 409, 413, 421, 422, 429, 502, 503)
        },
    )
    app.add_middleware(
        Gate,
        check={
            runway.PATH: holder_or_user,
            "/v1/": holder_of,
            inference.PREFIX: inference.checker(manager),
            "/token": holder_of,
            _WEBHOOK: signed,
        },
        limit=settings.max_body,
        larger={_WEBHOOK: _WEBHOOK_BODY},
        headers={
            "Content-Security-Policy": f"frame-ancestors {settings.frame_ancestors}",
            "X-Content-Type-Options": "nosniff",
        },
        hosts=None if keys else [name.strip().lower() for name in settings.hosts.split(",")],
        anywhere=(_WEBHOOK,),  # asks for a signature instead
        answers={
            runway.PATH: runway.error,
            **dict.fromkeys((anam.PATH, bithuman.PATH, keyframe.PATH, inference.PREFIX), form.error),
        },
    )
    if settings.cors:
        origins = [origin.strip() for origin in settings.cors.split(",")]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])

    app.add_middleware(runway.AnyOrigin)

    @app.exception_handler(ApiError)
    async def on_problem(_: Request, problem: ApiError) -> JSONResponse:
        return problem.answer()

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return ApiError(422, "invalid_request", f"{where}: {first['msg']}" if where else first["msg"]).answer()

    @app.exception_handler(HTTPException)
    async def on_http(_: Request, error: HTTPException) -> JSONResponse:
        """Errors of FastAPI itself: no such path or method, or a body that cannot be read."""
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return ApiError(error.status_code, code, error.detail, **dict(error.headers or {})).answer()

    def authorised(
        request: Request,
        authorization: Annotated[str | None, Header()] = None,  # for the documentation
        x_api_key: Annotated[str | None, Header()] = None,
    ) -> str:
        return holder_of(request.headers)

    locked = [Depends(authorised)]
    tenant = Depends(authorised)  # the name of the key's holder

    def find(session_id: str, holder: str) -> Session:
        """Whoever holds another key learns nothing, not even that there is such a session."""
        session = manager.sessions.get(session_id, holder)
        if session is None:
            raise ApiError(404, "unknown_session", "there is no such session (any more)")
        return session

    def client_of(request: Request, holder: str = tenant) -> str:
        """Who asks, as far as that can be told: the holder of a key that has a name, or else an address."""
        return f"key {holder}" if holder else f"address {_network(request)}"

    whose = Depends(client_of)  # see `Session.client`

    def limit_of(client: str, holder: str) -> int:
        free = holder in settings.admission.tenants or client in _LOOPBACK
        return 0 if free else settings.sessions_per_client

    for dialect in (runway, anam, bithuman, keyframe):
        app.include_router(dialect.create_router(manager, tenant, whose, limit_of))
    app.include_router(runway_avatars.create_router(manager, tenant))
    app.include_router(inference.create_router(manager))

    def check_character(slug: str) -> str:
        if slug not in manager.characters:
            known = list(manager.characters)
            raise ApiError(404, "unknown_character", f"no character {slug!r}; {did_you_mean(slug, known)}")
        return slug

    async def admit(character: str, name: str, **options: Any) -> Session:
        try:
            return await let_in(character, name, **options)
        except ApiError as problem:
            manager.refused(problem.code)
            raise

    async def let_in(character: str, name: str, **options: Any) -> Session:
        try:
            session = manager.sessions.create(character, name, **options)
        except NotAdmitted as error:
            refused = error.refused
            headers = {} if refused.retry_after is None else {"Retry-After": str(refused.retry_after)}
            status = 429 if refused.code == "quota" else 503
            raise ApiError(status, refused.code, refused.message, **headers) from None
        except RoomTaken:
            raise ApiError(409, "room_taken", "this room is in use by somebody else") from None
        try:
            await manager.open_room(session)
        except LivekitRefused as error:
            manager.act(manager.sessions.failed(session, "livekit_refused", str(error)))
            raise ApiError(502, "livekit_refused", str(error)) from None
        except LivekitGone as error:
            manager.act(manager.sessions.failed(session, "livekit_unreachable", str(error)))
            raise ApiError(503, "livekit_unreachable", str(error), **{"Retry-After": "5"}) from None
        await manager.remember()  # before the user is told of the session
        return session

    def ticket(session: Session, name: str, metadata: str = "", attributes: dict[str, str] | None = None) -> str:
        seconds = settings.join_s + 60  # whoever comes later asks again
        return user_token(settings.livekit, session.room, session.identity, name, metadata, attributes, seconds=seconds)

    def view(session: Session) -> SessionView:
        may_join = session.state in (State.READY, State.RUNNING)
        position = manager.sessions.position(session) or None
        wait = manager.sessions.estimated_wait(session) if position else None
        failure = session.failure
        return SessionView(
            id=session.id,
            character=session.character,
            state=session.state,
            position=position,
            estimated_wait_s=round(wait, 1) if wait is not None and math.isfinite(wait) else None,
            room_name=session.room,
            server_url=settings.livekit.browser_url if may_join else None,
            participant_token=ticket(session, session.name) if may_join else None,
            error=ErrorView(code=failure.code, message=failure.message) if failure else None,
        )

    @app.get("/healthz")
    async def healthz() -> Health:
        """Whether the application works, and what it is doing."""
        livekit = await manager.livekit_answers()
        states = [s.state for s in manager.sessions.all()]
        return Health(
            status="ok" if livekit and manager.sessions.capacity and not manager.shortfall else "degraded",
            livekit=livekit,
            pipelines=manager.sessions.capacity,
            running=states.count(State.RUNNING),
            queued=states.count(State.NOT_READY),
            target=manager.replicas.target,
            capacity=manager.replicas.capacity,
            shortfall=manager.shortfall,
            note=manager.replicas.note,
            random_weights=manager.random_weights,
        )

    @app.get("/v1/characters", dependencies=locked)
    async def characters() -> list[CharacterView]:
        """The characters to choose from."""
        return [
            CharacterView(
                slug=c.slug,
                name=c.character.name,
                description=c.character.description,
                greeting=c.character.greeting,
                portrait_url=f"/v1/characters/{c.slug}/portrait",
                portrait=c.character.kind,
                animated=not manager.portraits or c.character.kind in manager.portraits,
                models=models_for(c.character.kind),
            )
            for c in manager.characters.values()
        ]

    @app.get("/v1/characters/{slug}/portrait", response_class=FileResponse)
    async def portrait(slug: str) -> FileResponse:
        """A character's picture."""
        return FileResponse(manager.characters[check_character(slug)].portrait)

    @app.post("/v1/sessions", status_code=201)
    async def create_session(request: NewSession, holder: str = tenant, client: str = whose) -> SessionView:
        """Ask for a session. READY: join the room within a minute. NOT_READY: queued; ask again once a second or so."""
        character = check_character(request.character)
        name, most = request.participant_name, limit_of(client, holder)
        return view(await admit(character, name, tenant=holder, client=client, most=most))

    @app.get("/v1/sessions/{session_id}")
    async def get_session(session_id: str, holder: str = tenant) -> SessionView:
        """How a session stands. Asking keeps the place in the queue."""
        return view(find(session_id, holder))

    @app.delete("/v1/sessions/{session_id}")
    async def delete_session(session_id: str, holder: str = tenant) -> SessionView:
        """End the session, or leave the queue."""
        session = find(session_id, holder)
        manager.act(manager.sessions.cancel(session))
        return view(session)

    @app.get("/v1/sessions/{session_id}/trace")
    async def trace(session_id: str, holder: str = tenant) -> dict[str, Any]:
        """The newest chunks and turns of a running session, for chrome://tracing or Perfetto."""
        found = await manager.trace(find(session_id, holder))
        if found is None:
            raise ApiError(409, "not_running", "only a running session has a trace")
        return found

    @app.post("/token", status_code=201)
    async def token(request: TokenRequest, holder: str = tenant, client: str = whose) -> TokenAnswer:
        """LiveKit's TokenSource endpoint. Joining the room starts the character, or takes a place in the queue.

        `room_name` is the client's own name for a room, by which it finds its room again as long as its session lasts;
        the token holds the room's name in LiveKit.
        """
        if request.participant_identity == CHARACTER:
            raise ApiError(422, "invalid_request", f"participant_identity: {CHARACTER!r} is the character's own")
        session = await admit(
            check_character(_wanted(request) or next(iter(manager.characters))),
            request.participant_name,
            room=request.room_name,
            identity=request.participant_identity,
            tenant=holder,
            client=client,
            most=limit_of(client, holder),
            waits_in_room=True,
        )
        about = request.participant_name, request.participant_metadata, request.participant_attributes
        return TokenAnswer(server_url=settings.livekit.browser_url, participant_token=ticket(session, *about))

    @app.post(_WEBHOOK)
    async def webhook(request: Request) -> dict[str, str]:
        """For the LiveKit server only: who joined a room and who left."""
        try:
            event = verifier.receive(await request.body(), request.headers.get("authorization"))
        except WebhookRejected as rejected:
            raise ApiError(rejected.status, rejected.code, str(rejected)) from None
        manager.entered(event.room.name)
        who = event.participant.identity
        if who and who != CHARACTER:
            if event.event == "participant_joined":
                manager.act(manager.sessions.joined(event.room.name, who))
            elif event.event == "participant_left":
                manager.act(manager.sessions.left(event.room.name, who))
        return {"status": "ok"}

    if WEB.is_dir():
        app.mount("/static", StaticFiles(directory=WEB), name="static")

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        index = WEB / "index.html"
        if not index.is_file():
            raise ApiError(404, "no_page", "this installation has no web page")
        return FileResponse(index)

    return app


def _network(request: Request) -> str:
    """Where a request comes from: an IPv4 address, or the 64 bits of an IPv6 address that a household has.

    Serve's proxy puts the address from X-Forwarded-For here if the request comes from a proxy that it trusts.
    """
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else str(address)


def _wanted(request: TokenRequest) -> str:
    """The character that a TokenSource request names; "" if none."""
    if slug := request.participant_attributes.get("character"):
        return slug
    agents = request.room_config.get("agents")
    if isinstance(agents, list) and agents and isinstance(agents[0], dict):
        name = agents[0].get("agent_name") or agents[0].get("agentName")
        return name if isinstance(name, str) else ""
    return ""
