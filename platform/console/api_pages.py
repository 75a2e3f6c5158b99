"""Doors without a key: the API's description, and the page that shows it."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console import api_description


@require_safe
def description(request: HttpRequest) -> HttpResponse:
    return JsonResponse(api_description.document(), headers={"Cache-Control": "public, max-age=300"})


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "console/api_docs.html")
