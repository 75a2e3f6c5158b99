"""Before Django's settings load, give a test run the environment that they read: `-p embedded.pytest_plugin`.

Without `DATABASE_URL` one throw-away PostgreSQL is started, for all workers of pytest-xdist, and stopped at the end.
pytest-django loads the settings in `pytest_load_initial_conftests`, before any conftest; so this is a plugin.
"""

import os
from collections.abc import Generator
from contextlib import ExitStack

import pytest

SERVERS = ExitStack()  # of the process that started them: workers find DATABASE_URL in what they inherit


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    os.environ.setdefault("DEBUG", "1")  # secrets have defaults then; pytest-django turns the setting itself off
    if "DATABASE_URL" not in os.environ and "GPUYARD_DATABASE_URL" not in os.environ:
        os.environ["DATABASE_URL"] = _database_url(early_config)
    return (yield)


def _database_url(early_config: pytest.Config) -> str:
    asked = early_config.known_args_namespace
    if asked.help or asked.version or getattr(asked, "collectonly", False):
        return "postgresql://nobody@127.0.0.1:1/no-test-runs"
    from embedded import throwaway

    return SERVERS.enter_context(throwaway.postgres_server()).url()


def pytest_unconfigure() -> None:
    SERVERS.close()
