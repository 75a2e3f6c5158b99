"""A machine is made a host over SSH: steps that each say what they found, do what is missing, and look again.

The owner has confirmed the fingerprint of the host key before any credential is sent, and only that key is accepted.
Credentials stay in memory. The token reaches the machine through a standard input, never in a command line or a file.
Running it again changes nothing that is done already.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agents import bootstrap_units as units
from agents.ssh import Address, Credentials, HostKey, Result, Session
from apikit.errors import DomainError

ROOT = "/opt/gpuyard"
STATE = "/var/lib/gpuyard-agent"
DRIVER_FLOOR = 535
OPERATIONS_USER = "gpuyard-ops"
ARCHITECTURES = ("x86_64", "aarch64")
INSTALL_S = 600

type Say = Callable[[str, str, str], None]  # step, "there" | "done", what was found


class StepFailed(DomainError):
    slug = "bootstrap-step-failed"
    title = "A step of the installation did not come to its end"

    def __init__(self, step: str, detail: str, *, cure: str = "") -> None:
        super().__init__(f"{step}: {detail}{' ' + cure if cure else ''}", step=step, cure=cure)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to stand on the machine at the end.

    wheel: the agent's package, uploaded; None: it is installed from the package index the machine uses. sim: simulated
    devices ("A100_80G x2") for a test pool; then no driver and no engine is needed. service: whether systemd runs it.
    """

    server: str
    token: str
    name: str
    version: str
    wheel: bytes | None = None
    wheel_name: str = "gpuyard-agent.whl"
    sim: str = ""
    engine: str = "docker"
    root: str = ROOT
    state: str = STATE
    units: str = units.FOLDER
    pythons: tuple[str, ...] = ("python3", "python3.14", "python3.13", "python3.12")  # tried in this order
    service: bool = True
    let_in: str = ""  # a public key of the platform's own, where the machine may be let whole (bare metal)
    install: str = ""  # a shell line instead of ours, for machines with packages of their own
    agent_options: tuple[str, ...] = ()

    @property
    def agent(self) -> str:
        return f"{self.root}/agent/bin/gpuyard-agent"

    @property
    def helper(self) -> str:
        return f"{self.root}/agent/bin/gpuyard-root"


@dataclass(frozen=True)
class Step:
    """`look` returns what is there, or None. `act` makes it so; None: only a person can, and `cure` tells him how."""

    name: str
    look: Callable[[], str | None]
    act: Callable[[], Result | None] | None = None
    cure: str = ""


@dataclass
class Machine:
    """The far end of a bootstrap: commands, with root's rights where they need them."""

    session: Session
    password: str | None
    is_root: bool = False
    python: str = "python3"

    def run(self, command: str, *, given: bytes = b"", within_s: float = 60) -> Result:
        return self.session.run(command, given=given, within_s=within_s)

    def sudo(self, command: str, *, given: bytes = b"", within_s: float = 60) -> Result:
        """Run one shell line as root. A password goes in front of `given`, where sudo takes it away."""
        line = f"sh -c {shlex.quote(command)}"
        if self.is_root:
            return self.run(line, given=given, within_s=within_s)
        if self.password is None:
            return self.run(f"sudo -n {line}", given=given, within_s=within_s)
        return self.run(f"sudo -k -S -p '' {line}", given=self.password.encode() + b"\n" + given, within_s=within_s)


def run(*, address: Address, host_key: HostKey, credentials: Credentials, plan: Plan, say: Say) -> dict[str, str]:
    """Carry all steps out; return what each found. Raises StepFailed, and what agents.ssh raises.

    host_key: the one whose fingerprint a person confirmed. say: called after each step, for progress.
    """
    found: dict[str, str] = {}
    with Session(address, host_key=host_key, credentials=credentials) as session:
        machine = Machine(session, credentials.password)
        for step in steps(machine, plan):
            state, found[step.name] = carry_out(step)
            say(step.name, state, found[step.name])
    return found


def steps(machine: Machine, plan: Plan) -> Iterator[Step]:
    """Yield the steps in order; each may rely on those before it."""
    yield Step("system", lambda: _system(machine), cure="Linux on x86_64 or aarch64 is needed.")
    yield Step("root", lambda: _root(machine), cure="Use a user who may run sudo.")
    yield Step("python", lambda: _python(machine, plan), cure="Install Python 3.12 or newer, with its venv module.")
    if not plan.sim:
        cure = f"Install an NVIDIA driver of branch {DRIVER_FLOOR} or newer."
        yield Step("driver", lambda: _driver(machine), cure=cure)
        yield Step("engine", lambda: _engine(machine, plan), cure=f"Install {plan.engine}, and start it.")
    yield Step("agent", lambda: _agent(machine, plan), lambda: _install(machine, plan))
    yield Step("identity", lambda: _identity(machine, plan), lambda: _enrol(machine, plan))
    if plan.let_in:
        yield Step("access", lambda: _access(machine, plan), lambda: _let_in(machine, plan))
    if plan.service:
        text = units.agent(command=plan.agent, state=plan.state)
        yield _service("service", machine, plan, units.AGENT, text)
        if not plan.sim:  # whose workloads are processes, with no network of their own
            text = units.helper(command=plan.helper, state=plan.state)
            yield _service("helper", machine, plan, units.HELPER, text)


def carry_out(step: Step) -> tuple[str, str]:
    there = step.look()
    if there is not None:
        return "there", there
    if step.act is None:
        raise StepFailed(step.name, "It is not as it must be.", cure=step.cure)
    result = step.act()
    there = step.look()
    if there is None:
        told = "" if result is None else (result.err or result.out).strip()[-300:]
        raise StepFailed(step.name, told or "Nothing was said.", cure=step.cure)
    return "done", there


def _text(result: Result) -> str | None:
    """Return what a look printed, or None if it failed or printed nothing."""
    return result.out.strip()[:200] or None if result.ok else None


def _system(machine: Machine) -> str | None:
    told = (_text(machine.run("uname -s -m -r")) or "").split()
    return " ".join(told) if len(told) == 3 and told[0] == "Linux" and told[2] in ARCHITECTURES else None


def _root(machine: Machine) -> str | None:
    machine.is_root = machine.run("id -u").out.strip() == "0"
    return "root" if machine.sudo("id -u").out.strip() == "0" else None


def _python(machine: Machine, plan: Plan) -> str | None:
    """Find the first Python that is new enough, and remember it for the installation."""
    look = "import sys, venv; print(sys.version.split()[0]); sys.exit(sys.version_info < (3, 12))"
    for name in plan.pythons:
        version = _text(machine.run(f"{shlex.quote(name)} -c {shlex.quote(look)}"))
        if version is not None:
            machine.python = name
            return f"{name} {version}"
    return None


def _driver(machine: Machine) -> str | None:
    told = _text(machine.sudo("nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u"))
    branch = (told or "").partition(".")[0]
    return told if branch.isascii() and branch.isdigit() and int(branch) >= DRIVER_FLOOR else None


def _engine(machine: Machine, plan: Plan) -> str | None:
    return _text(machine.sudo(f"{shlex.quote(plan.engine)} version --format '{{{{.Server.Version}}}}'"))


def _agent(machine: Machine, plan: Plan) -> str | None:
    told = _text(machine.sudo(f"{shlex.quote(plan.agent)} --version"))
    return told if told is not None and plan.version in told else None


def _install(machine: Machine, plan: Plan) -> Result:
    root = shlex.quote(plan.root)
    made = machine.sudo(f"mkdir -p {root} && chmod 755 {root}")
    if not made.ok:
        return made
    source = f"'gpuyard[agent]=={plan.version}'"
    if plan.wheel is not None:
        here = f"/tmp/{plan.wheel_name}"  # noqa: S108 -- on the machine; a wheel is no secret, and pip reads it at once
        machine.session.put(plan.wheel, here, mode=0o644)
        source = shlex.quote(f"{here}[agent]")
    ours = (
        f"{shlex.quote(machine.python)} -m venv {root}/agent && {root}/agent/bin/pip install --quiet --upgrade {source}"
    )
    return machine.sudo(plan.install or ours, within_s=INSTALL_S)


def _identity(machine: Machine, plan: Plan) -> str | None:
    path = shlex.quote(f"{plan.state}/identity.json")
    look = 'import json, sys; print(json.load(open(sys.argv[1]))["host"])'
    return _text(machine.sudo(f"test -s {path} && {shlex.quote(machine.python)} -c {shlex.quote(look)} {path}"))


def _enrol(machine: Machine, plan: Plan) -> Result:
    options = ["--state-dir", plan.state, "--server", plan.server, "--name", plan.name]
    options += ["--driver", "sim", "--sim", plan.sim, "--engine", "process"] if plan.sim else ["--engine", plan.engine]
    call = shlex.join([plan.agent, "enrol", *options, *plan.agent_options])
    state = shlex.quote(plan.state)
    # The token is read from standard input: a command line is seen by every user of the machine, and logged.
    line = f"mkdir -p -m 700 {state} && IFS= read -r GPUYARD_TOKEN && export GPUYARD_TOKEN && exec {call}"
    return machine.sudo(line, given=plan.token.encode() + b"\n", within_s=120)


def access_user(machine: Machine) -> str:
    """Return whose account lets the platform in: one of its own, or root's where there is no sudo."""
    return OPERATIONS_USER if machine.run("command -v sudo").ok else "root"


def _access(machine: Machine, plan: Plan) -> str | None:
    user = access_user(machine)
    listed = machine.sudo(f"cat ~{user}/.ssh/authorized_keys")
    may = user == "root" or machine.sudo(f"test -s /etc/sudoers.d/{user}").ok
    return user if may and plan.let_in in listed.out.splitlines() else None


def _let_in(machine: Machine, plan: Plan) -> Result:
    user = access_user(machine)
    make = ""
    if user != "root":
        make = (
            f"getent passwd {user} >/dev/null || useradd --system --create-home --shell /bin/sh --password '*' {user};"
            f" echo '{user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/.{user} && chmod 440 /etc/sudoers.d/.{user}"
            f" && mv /etc/sudoers.d/.{user} /etc/sudoers.d/{user}; "
        )
    folder = f"~{user}/.ssh"
    add = (
        f"install -d -m 700 -o {user} {folder} && touch {folder}/authorized_keys && chmod 600 {folder}/authorized_keys"
        f" && chown {user} {folder}/authorized_keys && cat >> {folder}/authorized_keys"
    )
    # A leading line end: what an editor left unfinished must not swallow the key.
    return machine.sudo(make + add, given=f"\n{plan.let_in}\n".encode())


def _service(step: str, machine: Machine, plan: Plan, name: str, text: str) -> Step:
    """Return the step that makes systemd run a unit of this text; one that runs with another text is started anew."""
    path = shlex.quote(f"{plan.units}/{name}")

    def look() -> str | None:
        same = machine.sudo(f"cmp -s - {path}", given=text.encode())
        return "active" if same.ok and machine.sudo(f"systemctl is-active {name}").out.strip() == "active" else None

    def act() -> Result:
        line = f"cat > {path} && systemctl daemon-reload && systemctl enable --now {name} && systemctl restart {name}"
        return machine.sudo(line, given=text.encode(), within_s=90)

    return Step(step, look, act, cure=f"See journalctl -u {name} on the machine.")
