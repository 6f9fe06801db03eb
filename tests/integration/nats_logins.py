"""Makes what logins at a NATS server need: certificates, nkeys, the JWTs of an operator and its account."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any


def make_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Return the files of an authority, and of a certificate for 127.0.0.1 with its key."""
    authority, key, request, certificate = (
        folder / name for name in ("ca.pem", "key.pem", "csr", "cert.pem")
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder, timeout=60)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=test")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", authority.name, "-days", "2")
    openssl("req", *curve, "-keyout", key.name, "-out", request.name)
    signed = ("-CA", authority.name, "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", request.name, *signed, "-out", certificate.name)
    return authority, certificate, key


class Nkey:
    """A key of one kind (``O``, ``A``, ``U``), with its seed."""

    def __init__(self, kind: str) -> None:
        import nkeys

        prefix = {
            "O": nkeys.PREFIX_BYTE_OPERATOR,
            "A": nkeys.PREFIX_BYTE_ACCOUNT,
            "U": nkeys.PREFIX_BYTE_USER,
        }[kind]
        seed = nkeys.encode_seed(os.urandom(32), prefix)
        self.seed = bytes(seed).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public = bytes(self._pair.public_key).decode()

    def jwt(self, subject: str, name: str, claims: dict[str, Any]) -> str:
        """Return a JWT about ``subject`` that this key signed."""
        body = {"iss": self.public, "sub": subject, "name": name, "iat": int(time.time()), "nats": claims}
        digest = hashlib.sha256(json.dumps(body).encode()).digest()
        body["jti"] = base64.b32encode(digest).decode().rstrip("=")
        text = ".".join(_segment(json.dumps(part)) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body))
        return f"{text}.{_segment(self._pair.sign(text.encode()))}"


def _segment(content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else bytes(content)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def operator_login() -> tuple[str, str]:
    """Return the configuration of a server with one account, and the credentials file of a user of it."""
    operator, account, user = Nkey("O"), Nkey("A"), Nkey("U")
    limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}
    known = operator.jwt(operator.public, "operator", {"type": "operator", "version": 2})
    claims = {"type": "account", "version": 2, "limits": {**limits, "wildcards": True}}
    trusted = operator.jwt(account.public, "account", claims)
    allowed = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}}
    member = account.jwt(user.public, "user", allowed)
    config = f"operator: {known}\nresolver: MEMORY\nresolver_preload: {{ {account.public}: {trusted} }}\n"
    dashes = "-" * 5
    file = (
        f"{dashes}BEGIN NATS USER JWT{dashes}\n{member}\n------END NATS USER JWT------\n\n"
        f"{dashes}BEGIN USER NKEY SEED{dashes}\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    return config, file
