"""`gpuyard exec`: it waits for what came, prints it, and ends with the command's code."""

from typing import Any

from tests.gpuyard.conftest import Shell
from tests.gpuyard.scripted_server import ScriptedServer, lease

ID = lease()["id"]
PATH = f"/leases/{ID}/exec"


def execution(state: str, **changes: Any) -> dict[str, Any]:
    came = {"exit_code": None, "output": "", "truncated": False, "failure": ""}
    return {"id": "exec_1", "member": 0, "command": ["ls"], "state": state, "simulated": True, **came, **changes}


def test_it_prints_the_output_and_ends_with_the_command_s_code(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", PATH, execution("running"))
    server.on("GET", f"{PATH}/exec_1", execution("running"), execution("done", exit_code=3, output="a\nb\n"))

    result = shell("exec", ID, "--timeout", "5", "--", "ls", "-l")

    assert (result.exit_code, result.stdout) == (3, "a\nb\n")
    assert server.asked[0].body == {"command": ["ls", "-l"], "member": 0, "timeout_s": 5}


def test_what_did_not_run_is_said(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", PATH, execution("done", failure="not over after 5 s: killed", output="half"))

    result = shell("exec", ID, "--", "sleep", "60")

    assert (result.exit_code, result.stdout) == (1, "half")
    assert "killed" in result.stderr
