"""The supervisor with small real processes: what ends is started again, and nothing outlives it unwatched."""

import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded import leftovers, processes
from embedded.process_table import Process
from embedded.stack_folder import AlreadyRuns, StackFolder
from embedded.supervisor import Supervisor

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")
# A leader that starts another process and ignores SIGTERM, as the other does.
STUBBORN = (
    "/bin/sh",
    "-c",
    "trap '' TERM; (trap '' TERM; while :; do sleep 0.1; done) & while :; do sleep 0.1; done",
)
SUPERVISE = """
import sys
from pathlib import Path
from embedded.process_table import Process
from embedded.stack_folder import StackFolder
from embedded.supervisor import Supervisor
supervisor = Supervisor(StackFolder(Path(sys.argv[1])))
supervisor.environment["PATH"] = "/usr/bin:/bin"
supervisor.add([Process("sleeper", (sys.executable, "-c", "import time; time.sleep(600)"))])
supervisor.run_until(lambda: False)
"""


@pytest.fixture
def supervisor(state_dir: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(StackFolder(state_dir))
    supervisor.environment["PATH"] = os.environ["PATH"]
    yield supervisor
    supervisor.stop_children()


def pid_of(supervisor: Supervisor, name: str) -> int:
    running = supervisor.children[name].running
    assert running is not None
    return running.pid


def tick_until(supervisor: Supervisor, condition: object, within_s: float = 20.0) -> None:
    def looked() -> bool:
        supervisor.tick()
        assert callable(condition)
        return bool(condition())

    processes.poll_until(looked, within_s=within_s, what="What the test waits for")


def test_a_process_that_was_killed_is_started_again(supervisor: Supervisor) -> None:
    supervisor.add([Process("sleeper", SLEEPER)])
    tick_until(supervisor, supervisor.all_ready)
    first = pid_of(supervisor, "sleeper")

    os.kill(first, signal.SIGKILL)
    tick_until(supervisor, lambda: supervisor.children["sleeper"].starts == 2)

    assert pid_of(supervisor, "sleeper") != first
    assert supervisor.folder.read("status")["processes"]["sleeper"]["last_exit"] == -signal.SIGKILL


def test_a_process_that_ends_at_once_is_started_ever_more_seldom(supervisor: Supervisor) -> None:
    supervisor.add([Process("ends", ("/bin/false",))])

    tick_until(supervisor, lambda: supervisor.children["ends"].quick_ends == 3)
    child = supervisor.children["ends"]

    assert child.last_exit == 1
    assert child.start_after - child.started_at >= 2.0


def test_a_door_is_ready_when_it_answers_and_not_before(supervisor: Supervisor) -> None:
    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.HTTPServer(("127.0.0.1", processes.free_port()), Refuses)
    url = f"http://127.0.0.1:{server.server_port}/"
    supervisor.add([Process("door", SLEEPER, answers_at=url)])
    server.socket.close()
    supervisor.tick()
    assert not supervisor.all_ready()

    listening = http.server.HTTPServer(("127.0.0.1", server.server_port), Refuses)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        tick_until(supervisor, supervisor.all_ready)
    finally:
        listening.shutdown()
        listening.server_close()


def test_stopping_ends_also_what_ignores_the_signal_and_what_it_started(supervisor: Supervisor) -> None:
    supervisor.add([Process("stubborn", STUBBORN, end_within_s=0.3), Process("sleeper", SLEEPER)])
    tick_until(supervisor, supervisor.all_ready)
    processes.poll_until(
        lambda: len(leftovers.children_of(supervisor.folder.path)) >= 3, within_s=10, what="The start of the child"
    )

    supervisor.stop_children()

    assert leftovers.children_of(supervisor.folder.path) == []


def test_a_held_process_stays_down_until_it_is_released(supervisor: Supervisor) -> None:
    supervisor.add([Process("sleeper", SLEEPER)])
    tick_until(supervisor, supervisor.all_ready)
    first = pid_of(supervisor, "sleeper")

    supervisor.folder.hold("sleeper")
    tick_until(supervisor, lambda: supervisor.children["sleeper"].running is None)
    supervisor.tick()
    assert not processes.is_alive(first)
    assert supervisor.folder.read("status")["processes"]["sleeper"]["pid"] is None
    supervisor.folder.release("sleeper")
    tick_until(supervisor, supervisor.all_ready)

    assert pid_of(supervisor, "sleeper") != first


def test_children_end_with_a_supervisor_that_is_killed(state_dir: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISE, str(state_dir)], start_new_session=True)
    folder = StackFolder(state_dir)
    try:
        processes.poll_until(
            lambda: bool(folder.read("status").get("processes", {}).get("sleeper", {}).get("pid")),
            within_s=20,
            what="The start of the child",
        )
        child = int(folder.read("status")["processes"]["sleeper"]["pid"])
    finally:
        supervisor.kill()
        supervisor.wait()

    processes.poll_until(lambda: not processes.is_alive(child), within_s=10, what="The end of the child")
    assert leftovers.children_of(state_dir) == []


def test_what_a_killed_supervisor_left_is_found_by_its_mark_and_ended(state_dir: Path) -> None:
    mark = {leftovers.MARK: str(state_dir), "PATH": os.environ["PATH"]}
    left = subprocess.Popen(STUBBORN, env=mark, start_new_session=True)
    stranger = subprocess.Popen(SLEEPER, env={leftovers.MARK: f"{state_dir}-of-another"}, start_new_session=True)
    try:
        processes.poll_until(
            lambda: len(leftovers.children_of(state_dir)) >= 2, within_s=10, what="The start of what is left"
        )

        leftovers.end(lambda: leftovers.children_of(state_dir), within_s=0.3)

        assert leftovers.children_of(state_dir) == []
        assert left.wait(10) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_workloads_are_found_where_they_stand(state_dir: Path) -> None:
    folder = StackFolder(state_dir)
    workload = folder.agent("host-1") / "sandbox" / "gy-lease-1"
    workload.mkdir(parents=True)
    running = subprocess.Popen(SLEEPER, cwd=workload, env={}, start_new_session=True)
    elsewhere = subprocess.Popen(SLEEPER, cwd=state_dir, env={}, start_new_session=True)
    try:
        assert leftovers.workloads_in(folder.agent("host-1")) == [running.pid]
        assert leftovers.workloads_in(folder.agent("host-2")) == []
    finally:
        for process in (running, elsewhere):
            process.kill()
            process.wait()


def test_a_folder_has_one_supervisor_at_a_time(state_dir: Path) -> None:
    with StackFolder(state_dir).held_by_supervisor():
        assert StackFolder(state_dir).is_held()
        with pytest.raises(AlreadyRuns), StackFolder(state_dir).held_by_supervisor():
            pass

    assert not StackFolder(state_dir).is_held()


def test_secrets_and_ports_stay_the_same_and_are_for_the_owner_alone(state_dir: Path) -> None:
    first = StackFolder(state_dir)

    assert first.secrets() == StackFolder(state_dir).secrets()
    assert first.ports("api", "streams") == StackFolder(state_dir).ports("api", "streams")
    assert (state_dir / "secrets.json").stat().st_mode & 0o077 == 0
    assert len(set(first.ports("api", "streams").values())) == 2
