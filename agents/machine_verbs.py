"""What is done on a machine that is given whole, and taken back: steps over SSH, each with a look after its act.

Each step is safe to repeat. The tenant gets an account of his own without root, his public keys (with the end of his
term in them, so that sshd itself lets nobody in after it), and his share of the machine. Nothing of a tenant's is ever
put into a command line but his account's name, which is ours.
"""

import hashlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from agents.bootstrap import Machine, Step, StepFailed, carry_out
from agents.ssh import Result

SHELL = "/bin/bash"
LEAST_UID = 500  # below it are the system's own accounts
SEARCH_S = 240  # the longest that the search for files of an account may take
STRAY = "find $(df -lP 2>/dev/null | awk 'NR > 1 {{print $6}}') -xdev -uid {uid} {what} 2>/dev/null"
# What a tenant without root cannot change; if it is other than before, somebody had more than he was given.
GUARDED = {
    "accounts": "getent passwd | sort; getent group | sort",
    "sudoers": "cat /etc/sudoers /etc/sudoers.d/* 2>/dev/null",
    "keys": 'getent passwd | cut -d: -f6 | sort -u | while read -r h; do cat "$h"/.ssh/authorized_keys* 2>/dev/null;'
    " done; cat /etc/ssh/sshd_config /etc/ssh/sshd_config.d/* 2>/dev/null",
    "units": "find /etc/systemd /etc/init.d /etc/cron* /var/spool/cron /etc/ld.so.preload /etc/profile.d"
    ' \\( -type f -o -type l \\) 2>/dev/null | sort | while read -r f; do echo "$f"; cat "$f" 2>/dev/null; done',
    "setuid": f"timeout {SEARCH_S} find / -xdev -perm /6000 -type f -printf '%p %m %u %s\\n' 2>/dev/null | sort",
}
# What its owner may have changed meanwhile: noted, and no reason to keep the machine back.
NOTED = {
    "packages": "dpkg-query -W 2>/dev/null || rpm -qa 2>/dev/null | sort",
    "ports": "ss -ltnH 2>/dev/null | awk '{print $4}' | sort -u",
}


@dataclass(frozen=True)
class Term:
    """Who has the machine, and for how long. left_s: seconds until his end, None without one."""

    user: str
    keys: Sequence[str]
    left_s: int | None
    gpus: tuple[str, ...]
    simulated: bool


@dataclass(frozen=True)
class Outcome:
    steps: list[dict[str, str]]
    facts: dict[str, str]  # digests of GUARDED and NOTED
    uid: int | None = None


def give(
    machine: Machine, term: Term, *, baseline: dict[str, str], keep: Callable[[dict[str, str]], None], at: datetime
) -> Outcome:
    """Let the tenant in; return what was found. Raises StepFailed, and what agents.ssh raises.

    baseline: of an earlier try, {} at the first; then `keep` is given it before anything is changed.
    """
    done: list[dict[str, str]] = []
    machine.is_root = machine.run("id -u").out.strip() == "0"
    _run(Step("alone", lambda: _alone(machine, term.user), cure="Somebody's account was left behind."), done, at)
    facts = baseline or collect(machine)
    keep(facts)
    for step in _giving(machine, term):
        _run(step, done, at)
    uid = machine.run(f"id -u {shlex.quote(term.user)}").out.strip()
    return Outcome(done, facts, int(uid))


def take(
    machine: Machine, *, user: str, uid: int | None, gpus: tuple[str, ...], simulated: bool, at: datetime
) -> Outcome:
    """Take the machine back: keys off, sessions ended, nothing of the account left. Return what was found.

    uid: of the account, for a repetition after it was deleted. Raises as `give` does.
    """
    done: list[dict[str, str]] = []
    machine.is_root = machine.run("id -u").out.strip() == "0"
    known = machine.run(f"id -u {shlex.quote(user)}").out.strip()
    uid = int(known) if known.isdigit() else uid
    _check_is_his(machine, user, uid)
    for step in _taking(machine, user, uid):
        _run(step, done, at)
    if gpus and not simulated:
        _run(Step("gpus", lambda: _idle(machine), cure="A process of nobody's is on a GPU."), done, at)
    return Outcome(done, collect(machine), uid)


def _check_is_his(machine: Machine, user: str, uid: int | None) -> None:
    """Nothing of anybody else's is ever deleted: a number that its owner has given to another account since is not."""
    if uid is None:
        return
    names = machine.run(f"getent passwd | awk -F: '$3 == {uid} {{print $1}}'").out.split()
    if uid < LEAST_UID or set(names) - {user}:
        raise StepFailed("account", f"Number {uid} is the account of {', '.join(names) or 'the system'}.")


def drift(before: dict[str, str], after: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return what is other than before: (what no tenant can have changed by right, what is only noted)."""
    other = [name for name in before if before[name] != after.get(name)]
    return [name for name in other if name in GUARDED], [name for name in other if name in NOTED]


def collect(machine: Machine) -> dict[str, str]:
    """Return a digest of each of the things that are compared before and after."""
    found = {}
    for name, command in (GUARDED | NOTED).items():
        result = machine.sudo(f"({command}) | sha256sum", within_s=SEARCH_S + 20)
        found[name] = result.out.split()[0] if result.ok and result.out.split() else hashlib.sha256(b"").hexdigest()
    return found


def _run(step: Step, done: list[dict[str, str]], at: datetime) -> None:
    state, found = carry_out(step)
    done.append({"at": at.isoformat(), "step": step.name, "state": state, "found": found[:200]})


def _giving(machine: Machine, term: Term) -> Iterator[Step]:
    name = shlex.quote(term.user)
    make = f"useradd --create-home --user-group --shell {SHELL} --password '*' {name} && chmod 700 ~{term.user}"
    for group in ("video", "render"):
        make += f" && if getent group {group} >/dev/null; then usermod -a -G {group} {name}; fi"
    yield Step("account", lambda: _account(machine, term.user), _act(machine, make))
    yield Step("limits", lambda: _limits(machine, term.user), _act(machine, _limit(term.user)))
    content = _authorized(machine, term)
    where = f"~{term.user}/.ssh"
    # As the tenant himself: his home is his, and whatever he links there must lead root nowhere.
    write = (
        "umask 077; rm -f ~/.ssh/.new; mkdir -p ~/.ssh && cat > ~/.ssh/.new && mv -f ~/.ssh/.new ~/.ssh/authorized_keys"
    )
    put = f"runuser -u {name} -- env HOME=/home/{term.user} sh -c {shlex.quote(write)}"
    yield Step("end", lambda: _expires(machine, term), lambda: machine.sudo(_expire(term)))
    yield Step(
        "keys",
        lambda: _same(machine, f"{where}/authorized_keys", content, f"{len(term.keys)} keys"),
        lambda: machine.sudo(put, given=content),
    )
    if not term.simulated:
        yield Step("gpus", lambda: _sees(machine, term), cure="The tenant's account does not see the GPUs.")


def _taking(machine: Machine, user: str, uid: int | None) -> Iterator[Step]:
    name = shlex.quote(user)
    lock = f"rm -rf ~{user}/.ssh; usermod --lock --expiredate 1 --shell /usr/sbin/nologin {name}"
    yield Step("keys", lambda: _no_keys(machine, user), _act(machine, lock))
    if uid is not None:
        kill = (
            f"loginctl terminate-user {name} 2>/dev/null; for n in 1 2 3 4 5 6 7 8 9 10; do"
            f" pkill -KILL -u {uid}; pkill -KILL -U {uid}; pgrep -U {uid} >/dev/null || break; sleep 0.5; done"
        )
        yield Step("sessions", lambda: _no_process(machine, uid), _act(machine, kill))
    gone = (
        f"if getent passwd {name} >/dev/null; then crontab -r -u {name} 2>/dev/null; userdel --force --remove {name};"
        f" fi; rm -rf /home/{name} /var/lib/systemd/linger/{name} /var/spool/cron/crontabs/{name} /var/mail/{name};"
        f" if getent group {name} >/dev/null; then groupdel {name}; fi; rm -rf /etc/systemd/system/user-{uid}.slice.d"
    )
    yield Step("account", lambda: _no_account(machine, user), _act(machine, gone))
    if uid is not None:
        wipe = STRAY.format(uid=uid, what="-depth -delete") + (
            f"; ipcs -m -c 2>/dev/null | awk '$3 == {uid} {{print $1}}' | xargs -r -n1 ipcrm -m; true"
        )
        yield Step("files", lambda: _no_file(machine, uid), _act(machine, wipe, within_s=SEARCH_S))


def _act(machine: Machine, command: str, *, within_s: float = 60) -> Callable[[], Result]:
    return lambda: machine.sudo(command, within_s=within_s)


def _alone(machine: Machine, user: str) -> str | None:
    there = machine.run("getent passwd | cut -d: -f1").out.split()
    others = [name for name in there if name.startswith("gy-") and name != user]
    return None if others or not there else "nobody else"


def _account(machine: Machine, user: str) -> str | None:
    found = machine.run(f"getent passwd {shlex.quote(user)}").out.strip().split(":")
    if len(found) != 7 or found[6] != SHELL or found[2] == "0":
        return None
    groups = machine.run(f"id -nG {shlex.quote(user)}").out.split()
    return None if {"sudo", "wheel", "docker", "root"} & set(groups) else f"uid {found[2]}, {' '.join(groups)}"


def _limits(machine: Machine, user: str) -> str | None:
    if not machine.run("test -d /run/systemd/system").ok:
        return "there is no systemd"
    uid = machine.run(f"id -u {shlex.quote(user)}").out.strip()
    return "slice" if machine.sudo(f"test -s /etc/systemd/system/user-{uid}.slice.d/50-gpuyard.conf").ok else None


def _limit(user: str) -> str:
    """The agent and the owner's own system keep 5 % of the memory and their share of the CPU."""
    folder = f"/etc/systemd/system/user-$(id -u {shlex.quote(user)}).slice.d"
    text = "[Slice]\\nMemoryMax=95%%\\nTasksMax=65536\\nCPUWeight=90\\n"
    return f"mkdir -p {folder} && printf '{text}' > {folder}/50-gpuyard.conf && systemctl daemon-reload"


def _expire(term: Term) -> str:
    """The account itself is over a day after the end at the latest, whatever keys its holder has added to his own."""
    if term.left_s is None:
        return f"usermod --expiredate '' {shlex.quote(term.user)}"
    days = f"$(( ($(date +%s) + {max(0, term.left_s)}) / 86400 + 2 ))"
    return f"usermod --expiredate $(date -u -d @$(( {days} * 86400 )) +%Y-%m-%d) {shlex.quote(term.user)}"


def _expires(machine: Machine, term: Term) -> str | None:
    field = machine.sudo(f"getent shadow {shlex.quote(term.user)} | cut -d: -f8")
    day = field.out.strip()
    if term.left_s is None:
        return "no end" if field.ok and not day else None
    now_s = machine.run("date +%s").out.strip()
    wanted = (int(now_s) + max(0, term.left_s)) // 86_400 + 2 if now_s.isdigit() else -1
    return f"day {day}" if day.isdigit() and abs(int(day) - wanted) <= 1 else None


def _authorized(machine: Machine, term: Term) -> bytes:
    until = ""
    if term.left_s is not None:
        # By the machine's own clock and zone, from a duration: its clock may be off.
        told = machine.run(f"date -d @$(( $(date +%s) + {max(0, term.left_s)} )) +%Y%m%d%H%M%S").out.strip()
        if len(told) != 14 or not told.isdigit():
            raise StepFailed("keys", f"Its date does not tell a time: {told[:40]!r}.", cure="GNU date is needed.")
        until = f'expiry-time="{told}" '
    return "".join(f"{until}{key}\n" for key in term.keys).encode()


def _same(machine: Machine, path: str, content: bytes, what: str) -> str | None:
    return what if machine.sudo(f"cmp -s - {path}", given=content).ok else None


def _sees(machine: Machine, term: Term) -> str | None:
    listed = machine.sudo(f"runuser -u {shlex.quote(term.user)} -- nvidia-smi --query-gpu=uuid --format=csv,noheader")
    return ", ".join(sorted(term.gpus)) if sorted(listed.out.split()) == sorted(term.gpus) else None


def _idle(machine: Machine) -> str | None:
    found = machine.sudo("nvidia-smi --query-compute-apps=pid --format=csv,noheader")
    return "no process" if found.ok and not found.out.strip() else None


def _no_keys(machine: Machine, user: str) -> str | None:
    name = shlex.quote(user)
    if not machine.run(f"getent passwd {name}").ok:
        return "no account"
    off = machine.sudo(f"test ! -e ~{user}/.ssh && getent passwd {name} | grep -q ':/usr/sbin/nologin$'")
    return "off, and locked" if off.ok else None


def _no_process(machine: Machine, uid: int) -> str | None:
    # Zombies have nothing any more: their parent has not asked for their end yet.
    listed = machine.run("ps -eo uid=,ruid=,stat=")
    mine = [row for row in listed.out.splitlines() if str(uid) in row.split()[:2] and row.split()[2][0] != "Z"]
    return "none" if listed.ok and not mine else None


def _no_account(machine: Machine, user: str) -> str | None:
    there = machine.run(
        f"getent passwd {shlex.quote(user)} || getent group {shlex.quote(user)} || test -e /home/{user}"
    )
    return "gone" if there.exit_code == 1 else None


def _no_file(machine: Machine, uid: int) -> str | None:
    found = machine.sudo(STRAY.format(uid=uid, what="-print") + " | head -5; true", within_s=SEARCH_S)
    return "none" if found.ok and not found.out.strip() else None
