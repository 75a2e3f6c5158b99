"""`GET /agent/v1/releases/SHA256`: the wheel of a release that hosts are asked to take. Open: a host knows its hash and
who must have signed it, and there is nothing secret in it."""

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from agents import releases


@require_GET
def wheel(request: HttpRequest, sha256: str) -> HttpResponse:
    found = releases.wheel(sha256)
    if found is None:
        raise Http404
    response = HttpResponse(found, content_type="application/zip")
    response["Cache-Control"] = "public, max-age=86400, immutable"
    return response
