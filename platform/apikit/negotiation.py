"""How an answer is written: always as JSON."""

from typing import Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class JSONOnly(BaseContentNegotiation):
    """Answers JSON whatever Accept says; doors that stream look at Accept themselves."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        found = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == found), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type
