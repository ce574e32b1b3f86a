"""What shows that a picture was generated: words in it, and a signed claim in the file."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import av
import c2pa
import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from characters.errors import UserError
from characters.media.mark import Mark
from characters.media.provenance import CERTIFICATE, GENERATED, KEY, load_signer
from characters.media.video import VideoWriter
from kernels.i420 import rgb_to_i420


def certificate(subject: Any, issuer: Any, names: tuple[str, str], authority: bool) -> bytes:
    """In PEM."""
    subject_name, issuer_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n), x509.NameAttribute(NameOID.ORGANIZATION_NAME, n)])
        for n in names
    )
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(True, False, False, False, False, authority, authority, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject_name)
        .issuer_name(issuer_name)
        .public_key(subject.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(authority, None), True)
        .add_extension(usage, True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(subject.public_key()), False)
    )
    if not authority:
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), False)
    return builder.sign(issuer, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.fixture(params=["ec", "rsa"])
def signing(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment that names a certificate and its key."""
    above = ec.generate_private_key(ec.SECP256R1())
    own = ec.generate_private_key(ec.SECP256R1()) if request.param == "ec" else rsa.generate_private_key(65537, 2048)
    chain = certificate(own, above, ("Studio", "Root"), False) + certificate(above, above, ("Root", "Root"), True)
    (tmp_path / "chain.pem").write_bytes(chain)
    (tmp_path / "key.pem").write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {CERTIFICATE: str(tmp_path / "chain.pem"), KEY: str(tmp_path / "key.pem")}


def write(path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (4, 64, 48, 3), np.uint8)
    with VideoWriter(path, 48, 64) as writer:
        writer.write(frames, np.zeros(4_000, np.float32))


def test_a_rendered_file_carries_a_signed_claim(
    tmp_path: Path, signing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in signing.items():
        monkeypatch.setenv(name, value)
    write(tmp_path / "v.mp4")
    with c2pa.Reader(str(tmp_path / "v.mp4")) as reader:
        told = json.loads(reader.json())
    claim = told["manifests"][told["active_manifest"]]
    # "Valid": nothing was changed since. It is not "Trusted", because nobody knows this certificate.
    assert told["validation_state"] == "Valid" and claim["signature_info"]["issuer"] == "Studio"
    assert any(GENERATED in json.dumps(assertion) for assertion in claim["assertions"])
    with av.open(tmp_path / "v.mp4") as container:
        assert sum(1 for _ in container.decode(video=0)) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chain.pem", "key.pem", "v.mp4"]


def test_what_is_wrong_with_a_certificate_is_a_line(
    tmp_path: Path, signing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_signer({}) is None
    for environment, message in (
        ({CERTIFICATE: signing[CERTIFICATE]}, "belong together"),
        (signing | {KEY: str(tmp_path / "gone.pem")}, "cannot read .*gone.pem"),
        (signing | {KEY: signing[CERTIFICATE]}, "is not a private key"),
    ):
        with pytest.raises(UserError, match=message):
            load_signer(environment)
    for name, value in (signing | {CERTIFICATE: signing[KEY]}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="cannot sign"):
        write(tmp_path / "v.mp4")
    assert not (tmp_path / "v.mp4").exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("height", "width"), [(272, 176), (512, 512), (704, 1088)])
def test_the_words_are_in_the_picture_and_nothing_else_changes(height: int, width: int) -> None:
    mark = Mark(height, width)
    frames = np.random.default_rng(0).integers(60, 190, (2, height, width, 3), np.uint8)
    marked = mark.on_rgb(frames)
    changed = (marked != frames).any((0, 3))
    rows, columns = np.nonzero(changed)
    assert rows.min() > 0.85 * height and columns.max() < 0.6 * width, "below, at the left"
    assert changed.mean() < 0.04 and marked[:, changed].max() > 240 and np.isin(255, marked)
    # The same in the colours that a room sends.
    i420 = rgb_to_i420(torch.from_numpy(frames)).numpy()
    drawn = np.stack([mark.on_i420(frame) for frame in i420])
    expected = rgb_to_i420(torch.from_numpy(marked)).numpy()
    assert drawn.shape == i420.shape and np.abs(drawn.astype(int) - expected).max() <= 2 + 22
    assert np.abs(drawn.astype(int) - expected)[:, :height].max() <= 2
    assert np.array_equal(i420, rgb_to_i420(torch.from_numpy(frames)).numpy()), "frames are not written into"
