"""A request that comes over a kept connection whose other end has gone meanwhile: PostgreSQL was restarted."""

import pytest
from django.db import connection, connections

from tenants.models import Role
from tests.factories import make_tenant
from tests.tenants.conftest import MemberCaller

pytestmark = pytest.mark.django_db(transaction=True)


def _hang_up() -> None:
    """Let the server end this thread's session, so that the connection looks open and is not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (mine,) = cursor.fetchone()
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [mine])
    other.close()


def test_it_is_answered_over_a_new_one() -> None:
    caller = MemberCaller(make_tenant(), Role.DEVELOPER)
    assert caller.get("/api/v1/leases").status_code == 200
    _hang_up()

    assert caller.get("/api/v1/leases").status_code == 200
