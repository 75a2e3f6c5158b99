"""The ASGI application, for what is held open: agents' sync and streams."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# Each request has a thread here while it is answered, and each thread would keep a connection: five hundred followers
# that come back at once would take more than the database has.
os.environ.setdefault("DATABASE_POOL", "16")
application = get_asgi_application()
