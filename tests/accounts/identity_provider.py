"""A small OpenID Connect provider on loopback: discovery, authorize, token, keys, userinfo.

It lies where a test asks.
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

CLIENT_ID, CLIENT_SECRET = "gpuyard-test", "s3cret"


@dataclass
class IdentityProvider:
    """claims, userinfo: what is said otherwise than the truth; None: the member is left out."""

    person: dict[str, Any]
    url: str = ""
    key: RSAPrivateKey = field(default_factory=lambda: generate_private_key(65537, 2048))
    signs_with: RSAPrivateKey | None = None
    algorithm: str = "RS256"
    claims: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    gives_id_token: bool = True
    asked: dict[str, dict[str, str]] = field(default_factory=dict)  # by code: the query of authorize

    def discovery(self) -> dict[str, Any]:
        ends = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
        return {
            "issuer": self.url, "jwks_uri": f"{self.url}/keys", "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
            **{f"{name}_endpoint": f"{self.url}/{path}" for name, path in ends.items()},
        }  # fmt: skip

    def keys(self) -> dict[str, Any]:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": "k1", "use": "sig", "alg": "RS256"}]}

    def authorize(self, query: dict[str, str]) -> str:
        """Return where the person is sent back to; he has signed in and agreed."""
        code = f"code-{len(self.asked)}"
        self.asked[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        asked = self.asked.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if asked is None or asked["code_challenge"] != challenge.rstrip(b"=").decode():
            return 400, {"error": "invalid_grant"}
        if (form["client_id"], form["client_secret"]) != (CLIENT_ID, CLIENT_SECRET):
            return 401, {"error": "invalid_client"}
        now = int(time.time())
        claims = {
            "iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": asked.get("nonce"), **self.person
        } | self.claims  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        key = "" if self.algorithm == "none" else self.signs_with or self.key
        signed = jwt.encode(claims, key, algorithm=self.algorithm, headers={"kid": "k1"})  # type: ignore[arg-type]
        found = {"access_token": "at-1", "token_type": "Bearer", "expires_in": 300}
        return 200, found | ({"id_token": signed} if self.gives_id_token else {})


@contextmanager
def running(provider: IdentityProvider) -> Iterator[IdentityProvider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/authorize":
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                self.send_response(302)
                self.send_header("Location", provider.authorize(query))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            pages = {
                "/.well-known/openid-configuration": provider.discovery,
                "/keys": provider.keys,
                "/userinfo": lambda: provider.person | provider.userinfo,
            }
            self._say(200, pages[url.path]())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._say(*provider.token(dict(parse_qsl(body))))

        def _say(self, status: int, data: Any) -> None:
            raw = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
