"""The API's WSGI application; it serves the admin's static files too."""

import os
from wsgiref.headers import Headers

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from servestatic import ServeStatic  # type: ignore[import-untyped]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")


def _say_no_sniffing(headers: Headers, path: str, url: str) -> None:
    headers["X-Content-Type-Options"] = "nosniff"


# Around Django and not as its middleware, which is async only: under WSGI each request would pass through an event loop
# and change its thread three times.
application = ServeStatic(
    get_wsgi_application(),
    root=settings.STATIC_ROOT,
    prefix=settings.STATIC_URL,
    add_headers_function=_say_no_sniffing,
)
