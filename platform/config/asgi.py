"""The ASGI application, for what is held open: agents' sync and streams."""

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# Each request has a thread here while it is answered, and each thread would keep a connection: five hundred followers
# that come back at once would take more than the database has.
os.environ.setdefault("DATABASE_POOL", "16")
_pages = get_asgi_application()

# Models are there from here on.
from agents import sync_door  # noqa: E402
from console import request_measures  # noqa: E402

_sync = sync_door.door(request_measures.count)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Hand agents' syncs to their own door, and everything else to the framework."""
    await (_sync if sync_door.is_for(scope) else _pages)(scope, receive, send)
