"""What the tests of the doors as a whole say at their end."""

import sys
from collections import Counter

import pytest

FUZZED: Counter[str] = Counter()  # requests of test_fuzz, by operation


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much the access matrix tried."""
    matrix = sys.modules.get("tests.api.test_access_matrix")
    if matrix is not None and matrix.TRIED:
        routes, who, whose = (len({entry[i] for entry in matrix.TRIED}) for i in (0, 2, 3))
        terminalreporter.write_line(
            f"access matrix: {routes} routes x {who} callers x {whose} owners, {len(matrix.TRIED)} requests"
        )
    if FUZZED:
        failed = len([report for report in terminalreporter.stats.get("failed", []) if "test_fuzz" in report.nodeid])
        terminalreporter.write_line(
            f"fuzz-api: {FUZZED.total()} cases over {len(FUZZED)} operations, {failed} operations failed"
        )
