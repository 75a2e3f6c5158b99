"""The control of bench/api.py: a Django REST framework view that checks a body, inserts one row, and answers it.

No middleware, no authentication, no limits: what the framework itself costs, under the same web server and database.
"""

import os
from typing import Any

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import models
from django.urls import path

from config import env

TABLE = "bench_bare_row"
CREATE_TABLE = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
    id bigserial PRIMARY KEY, request varchar(300) NOT NULL, image varchar(300) NOT NULL, gpu_count integer NOT NULL,
    created_at timestamptz NOT NULL)
"""

settings.configure(
    SECRET_KEY="of-no-use-here",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[],
    INSTALLED_APPS=["django.contrib.contenttypes", "rest_framework"],
    DATABASES={"default": env.database(os.environ["DATABASE_URL"]) | {"CONN_MAX_AGE": 60}},
    USE_TZ=True,
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_PERMISSION_CLASSES": [],
        "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        "UNAUTHENTICATED_USER": None,
    },
)
django.setup()

from rest_framework import serializers  # noqa: E402 -- it reads the settings when it is imported
from rest_framework.request import Request  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402


class BareRow(models.Model):
    request = models.CharField(max_length=300)
    image = models.CharField(max_length=300)
    gpu_count = models.IntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "contenttypes"  # any that is installed
        db_table = TABLE
        managed = False

    def __str__(self) -> str:
        return self.request


class BareRowSerializer(serializers.ModelSerializer[BareRow]):
    class Meta:
        model = BareRow
        fields = ("id", "request", "image", "gpu_count", "created_at")


class BareCollection(APIView):
    def post(self, request: Request) -> Response:
        asked = BareRowSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        asked.save()
        return Response(asked.data, status=201)


urlpatterns: list[Any] = [path("bare", BareCollection.as_view())]
application = get_wsgi_application()
