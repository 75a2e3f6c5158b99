"""gpuyard lease metrics: what is asked, and how figures become a table; and other names of verbs."""

import json
from typing import Any

from tests.gpuyard.conftest import Shell
from tests.gpuyard.scripted_server import ScriptedServer, lease

ID = lease()["id"]
NOTHING: dict[str, Any] = {"mean": [None, None, None], "max": [None, None, None]}
GPU = {
    "member": 0, "epoch": 1, "host": "host_1", "gpu": "GPU-1", "gpu_model": "A100_80G", "memory_total_mib": 81920,
    "simulated": False, "utilization_percent": {"mean": [0, None, 99], "max": [10, None, 100]},
    "memory_used_mib": {"mean": [1024, None, 2048], "max": [1024, None, 4096]},
    "power_mw": {"mean": [250_000, None, 350_000], "max": [260_000, None, 400_000]}, "temperature_c": NOTHING,
}  # fmt: skip
METRICS = {
    "id": ID, "from": "2026-12-01T08:00:00Z", "to": "2026-12-01T08:03:00Z", "step_s": 60, "simulated": False,
    "at": [f"2026-12-01T08:0{minute}:00Z" for minute in range(3)],
    "series": [GPU, GPU | {"gpu": "GPU-2", **dict.fromkeys(("utilization_percent", "memory_used_mib"), NOTHING),
                           "power_mw": NOTHING}],
}  # fmt: skip
PATH = f"/leases/{ID}/metrics"


def test_a_line_for_each_gpu_that_measured_anything(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", PATH, METRICS)

    result = shell("lease", "metrics", ID, "--member", "0", "--step", "5m", "--since", "2026-12-01T08:00:00Z")

    assert result.exit_code == 0, result.stderr
    assert server.asked[0].query == {"member": "0", "step_s": "300", "since": "2026-12-01T08:00:00Z"}
    assert result.stdout.splitlines() == [
        "measured  2026-12-01T08:00:00Z – 2026-12-01T08:03:00Z",
        "MEMBER  GPU                 USE  TREND             MEMORY           POWER",
        "     0  A100_80G  50, max 100 %  ▁ █    max 4.0 of 80 GiB  300, max 400 W",
    ]


def test_a_line_for_each_step(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", PATH, METRICS)

    lines = shell("lease", "metrics", ID, "--by", "step").stdout.splitlines()

    assert [line.split() for line in lines[2:]] == [
        ["2026-12-01T08:00:00Z", "0", "A100_80G", "0", "%", "1024", "MiB", "250", "W"],
        ["2026-12-01T08:02:00Z", "0", "A100_80G", "99", "%", "2048", "MiB", "350", "W"],
    ]


def test_programs_get_the_figures_as_they_are(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", PATH, METRICS)

    assert json.loads(shell("lease", "metrics", ID, "--json").stdout) == METRICS


def test_verbs_go_by_the_names_that_people_type(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", f"/leases/{ID}", lease("active"))
    server.on("GET", "/leases", {"items": []})
    server.on("GET", "/secrets", {"items": []})

    assert shell("lease", "show", ID).stdout == shell("lease", "get", ID).stdout
    assert shell("lease", "ls").exit_code == 0
    assert shell("secret", "ls").exit_code == 0
    assert "No such command 'shew'" in shell("lease", "shew", ID).stderr
