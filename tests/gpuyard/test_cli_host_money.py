"""What a machine brings, and when it will be away, at the command."""

from tests.gpuyard.conftest import Shell
from tests.gpuyard.scripted_server import Answer, ScriptedServer

HOST = "host_1"


def cny(amount: str) -> dict[str, str]:
    return {"amount": amount, "currency": "CNY"}


def test_earnings_are_shown_by_lease_or_by_day(server: ScriptedServer, shell: Shell) -> None:
    line = {"earned": cny("9.00"), "gross": cny("10.00"), "gpu_seconds": 3600}
    told = {"host": HOST, "simulated": True, "from": "2026-11-01T00:00:00Z", "total": line}
    told |= {"by_lease": [{"lease": "lease_a", **line}], "by_day": [{"day": "2026-11-30", **line}]}
    server.on("GET", f"/hosts/{HOST}/earnings", told, told)

    by_lease, by_day = shell("host", "earnings", HOST), shell("host", "earnings", HOST, "--by", "day", "--days", "7")

    assert (by_lease.exit_code, by_day.exit_code) == (0, 0)
    assert "lease_a" in by_lease.stdout
    assert "9.00 CNY" in by_lease.stdout
    assert "simulated" in by_lease.stdout
    assert "2026-11-30" in by_day.stdout
    assert [asked.query.get("days") for asked in server.asked] == [None, "7"]


def test_a_summary_says_how_much_is_in_use_and_what_an_idle_hour_costs(server: ScriptedServer, shell: Shell) -> None:
    idle = {"model": "A100_80G", "a_sold_hour_brings": cny("1.80"), "an_idle_hour_costs": None}
    told = {"host": HOST, "simulated": False, "state": "online", "use": {"used_bp": 4200}, "idle_hour": [idle]}
    measured = {"index": 0, "name": "h2d_mib_per_s", "value": 12_345, "expected": 13_000, "least": 11_050, "hosts": 12}
    told |= {"figures": [measured], "verification": {"level": "L1", "holds_until": "2026-12-30T00:00:00Z"}}
    server.on("GET", f"/hosts/{HOST}/summary", told | {"earned": {"earned": cny("9.00")}, "score_bp": 9900})

    shown = shell("host", "summary", HOST)

    assert shown.exit_code == 0
    assert "42" in shown.stdout
    assert "A100_80G" in shown.stdout
    assert "not known" in shown.stdout
    assert "L1, until 2026-12-30" in shown.stdout
    for text in ("h2d_mib_per_s", "12345", "13000"):
        assert text in shown.stdout


def test_advice_takes_the_cost_of_an_hour_and_refuses_what_is_none(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", f"/hosts/{HOST}/price-advice", {"host": HOST, "price_floor": cny("0.50"), "items": []})

    assert shell("host", "advice", HOST, "--cost", "0.12").exit_code == 0
    assert server.asked[0].query["cost_micros_per_gpu_hour"] == "120000"
    assert shell("host", "advice", HOST, "--cost", "cheap").exit_code == 2


def test_a_window_of_maintenance_is_announced_listed_and_taken_back(server: ScriptedServer, shell: Shell) -> None:
    window = {"id": "maintenance_1", "host": HOST, "state": "announced", "message": "new fans", "lead_s": 3600}
    window |= {"starts_at": "2026-12-01T08:00:00Z", "ends_at": "2026-12-01T09:00:00Z"}
    server.on("POST", f"/hosts/{HOST}/maintenance", window)
    server.on("GET", f"/hosts/{HOST}/maintenance", {"items": [window]})
    server.on("DELETE", f"/hosts/{HOST}/maintenance/maintenance_1", Answer(status=204, body=None))

    announced = shell(
        "host", "maintain", HOST, "--from", "2026-12-01T08:00:00Z", "--to", "2026-12-01T09:00:00Z",
        "--message", "new fans", "--lead", "1h",
    )  # fmt: skip
    listed, taken_back = shell("host", "maintenance", HOST), shell("host", "withdraw", HOST, "maintenance_1")

    assert [each.exit_code for each in (announced, listed, taken_back)] == [0, 0, 0]
    assert server.asked[0].body == {
        "starts_at": "2026-12-01T08:00:00Z", "ends_at": "2026-12-01T09:00:00Z", "message": "new fans", "lead_s": 3600,
    }  # fmt: skip
    assert "new fans" in listed.stdout
    assert "maintenance_1 is taken back." in taken_back.stderr
