"""Files of a Hugging Face hub: asked about first, then downloaded; a download that was cut goes on where it was."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from characters.errors import UserError
from characters.model.config import CheckpointFile
from characters.output import write_error

_SHA256 = re.compile("[0-9a-f]{64}")
_PATIENCE = 10.0  # seconds for the hub's first answer


@dataclass(frozen=True)
class Remote:
    """What the hub says of a file.

    Attributes:
        url: where its bytes are.
        headers: to ask for them with.
        size: in bytes.
        sha256: of its bytes; "" if the hub does not say.
        commit: of its repository.
    """

    url: str
    headers: dict[str, str]
    size: int
    sha256: str
    commit: str


def ask(file: CheckpointFile) -> Remote:
    """Ask the hub about a file.

    Raises:
        UserError: the hub cannot be reached, refuses, or has another file than the model's config names.
    """
    import huggingface_hub as hub
    from huggingface_hub.utils import build_hf_headers

    with _plain_errors(file):
        url = hub.hf_hub_url(file.repository, file.file, revision=file.revision or None, endpoint=_endpoint())
        headers = build_hf_headers()
        found = hub.get_hf_file_metadata(url, timeout=_PATIENCE, headers=headers, endpoint=_endpoint())
    size, sha256 = found.size or 0, found.etag if _SHA256.fullmatch(found.etag or "") else ""
    where = f"{file.repository}: {file.file}"
    if file.size and size and size != file.size:
        raise UserError(
            f"the hub's {where} has {size:,} bytes, not {file.size:,}: it is not the file that was published"
        )
    if file.sha256 and sha256 and sha256 != file.sha256:
        raise UserError(
            f"the hub's {where} has the SHA-256 {sha256[:12]}…, not {file.sha256[:12]}…: it is another file"
        )
    if file.revision and len(file.revision) == 40 and found.commit_hash not in (None, file.revision):
        raise UserError(f"the hub's {where} is of revision {found.commit_hash}, not {file.revision}")
    source = found.location or url
    if urlsplit(source).netloc != urlsplit(url).netloc:
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
    return Remote(source, headers, size or file.size, file.sha256 or sha256 or "", found.commit_hash or "")


def download(file: CheckpointFile, remote: Remote, part: Path) -> str:
    """Bring a file's bytes to `part`, after those that are there already; returns their SHA-256.

    Raises:
        UserError: an error of the hub or the disk, after which `part` can be gone on with; or the bytes are not the
            file's, after which `part` is gone.
    """
    from huggingface_hub.file_download import http_get

    there = part.stat().st_size if part.exists() else 0
    if remote.size and there > remote.size:
        there = 0
    try:
        with open(part, "r+b" if there else "wb") as out, _plain_errors(file):
            out.seek(there)
            http_get(
                remote.url,
                out,
                resume_size=there,
                headers=dict(remote.headers),
                expected_size=remote.size or None,
                displayed_filename=file.file,
                tqdm_class=_bar(),
            )
        with open(part, "rb") as done:
            digest = hashlib.file_digest(done, "sha256").hexdigest()
    except OSError as error:
        raise write_error(part, error) from error
    if remote.sha256 and digest != remote.sha256:
        part.unlink()
        raise UserError(
            f"{file.repository}: {file.file} arrived damaged, with the SHA-256 {digest[:12]}… instead of "
            f"{remote.sha256[:12]}…, and was thrown away; try again"
        )
    return digest


def _bar() -> type[Any]:
    """A progress bar that is silent where nobody watches."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": not sys.stderr.isatty()})

    return Bar


@contextmanager
def _plain_errors(file: CheckpointFile) -> Iterator[None]:
    """Raises UserError, a line, for whatever the hub or the way to it does."""
    from huggingface_hub import errors
    from huggingface_hub.utils import logging

    where, before = f"{file.repository}: {file.file}", logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # its notes about retries
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise UserError(f"cannot get {where}: HF_HUB_OFFLINE is set") from error
    except errors.HfHubHTTPError as error:
        raise UserError(f"cannot get {where}: {_answer(error)}") from error
    except errors.LocalEntryNotFoundError as error:
        raise UserError(f"cannot get {where}: the hub at {_endpoint()} cannot be reached") from error
    except OSError as error:
        if error.errno is not None and error.errno not in (errno.ECONNREFUSED, errno.ECONNRESET, errno.ENETUNREACH):
            raise  # the disk's
        raise UserError(f"cannot get {where}: {error}; run the command again to go on") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "httpcore2"):
            raise
        raise UserError(
            f"cannot get {where}: the hub at {_endpoint()} cannot be reached ({type(error).__name__}); run the "
            "command again to go on, or use `characters models import` where there is no network"
        ) from error
    finally:
        logging.set_verbosity(before)


def _endpoint() -> str:
    """The hub's address. Read anew, because the library reads it once, when it is imported."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


def _answer(error: Any) -> str:
    """What a hub's answer means."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    match status:
        case 401 | 403:
            return f"the hub refuses it ({status}): accept the repository's terms there, and set HF_TOKEN"
        case 404:
            return "the hub does not have it (404)"
        case 429:
            return "the hub is asked too often (429): wait a few minutes, and run the command again to go on"
    if status is not None and status >= 500:
        return f"the hub is out of order ({status}): run the command again later to go on"
    return f"the hub answered {status or error}"
