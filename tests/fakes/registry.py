"""A registry of one private image, for a real engine to pull from: basic authentication, manifest, config, one layer.

Run as a program in the engine's own network: `python -m tests.fakes.registry PORT USER PASSWORD LAYER_TAR LOG`. Each
request becomes a line of the log: the status and the path.
"""

import base64
import gzip
import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAME = "acme/private"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def contents(layer: bytes) -> dict[str, tuple[str, bytes]]:
    """Return what each path below /v2/acme/private answers: kind and body."""
    packed = gzip.compress(layer, mtime=0)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sleep", "600"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            "history": [{"created_by": "test"}],
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(config),
                "digest": digest(config),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(packed),
                    "digest": digest(packed),
                }
            ],
        }
    ).encode()
    blob = "application/octet-stream"
    return {
        "/manifests/1": (MANIFEST, manifest),
        f"/manifests/{digest(manifest)}": (MANIFEST, manifest),
        f"/blobs/{digest(config)}": (blob, config),
        f"/blobs/{digest(packed)}": (blob, packed),
    }


def digest(raw: bytes) -> str:
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def main() -> None:
    port, user, password, layer, log = sys.argv[1:]
    served = contents(Path(layer).read_bytes())
    allowed = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind, body = served.get(self.path.removeprefix(f"/v2/{NAME}"), ("application/json", b"{}"))
            found = self.path == "/v2/" or self.path.removeprefix(f"/v2/{NAME}") in served
            status = 401 if self.headers.get("Authorization") != allowed else 200 if found else 404
            body = body if status == 200 else b'{"errors": [{"code": "UNAUTHORIZED", "message": "denied"}]}'
            with open(log, "a") as lines:
                lines.write(f"{status} {self.path}\n")
            self.send_response(status)
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="private"')
            else:
                self.send_header("Docker-Content-Digest", digest(body))
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 -- http.server's name

        def log_message(self, *_: object) -> None:
            return

    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
