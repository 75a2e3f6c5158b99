"""How the log looks: one JSON object per line, with what is bound to the request (request_id, lease_id, trace_id)."""

from typing import Any

import structlog

_BEFORE: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
]


def configure() -> None:
    """Let structlog's loggers write through the standard library's, so that there is one stream of lines."""
    structlog.configure(
        processors=[*_BEFORE, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def logging_of(*, level: str, form: str) -> dict[str, Any]:
    """Return Django's LOGGING. form: json, or text for a person at a terminal."""
    render: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
        if form == "json"
        else [structlog.dev.ConsoleRenderer(colors=False)]
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "lines": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": [*_BEFORE, structlog.stdlib.ExtraAdder()],
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Django's own handlers would write the same a second time.
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.server": {"handlers": [], "level": level, "propagate": True},
            # Every 4xx is a line of gpuyard.requests already; 5xx come with their traceback.
            "django.request": {"level": "ERROR", "propagate": True},
            "httpx2": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},  # "succeeded in 0.01 s", every second
            "celery.worker.strategy": {"level": "WARNING"},  # "received", every second
            "celery.beat": {"level": "WARNING"},
        },
    }
