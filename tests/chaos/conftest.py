"""Options of the chaos tests: how much, and from which seed."""

import pytest

LEASES, SEED = 50, 20261130


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpuyard chaos")
    group.addoption(
        "--chaos-leases", type=int, default=LEASES, metavar="N", help=f"leases under fire (default {LEASES})"
    )
    group.addoption("--chaos-seed", type=int, default=SEED, metavar="N", help=f"of plans and kills (default {SEED})")


@pytest.fixture(scope="session")
def chaos_leases(request: pytest.FixtureRequest) -> int:
    # With a default: the option is there only when pytest was given this folder.
    return int(request.config.getoption("chaos_leases", LEASES))


@pytest.fixture(scope="session")
def chaos_seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("chaos_seed", SEED))
