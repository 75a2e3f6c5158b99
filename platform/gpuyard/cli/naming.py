"""How a person names things: by id or by the name they gave them; and what the shell offers on TAB."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from gpuyard.cli.session import session
from gpuyard.client import Client
from gpuyard.errors import GpuyardError


class NotNamed(click.ClickException):
    """What was named is not there, or not alone; how the verb is used was right, so that is not said again."""

    exit_code = 2


_LIVING = ("pending", "scheduled", "provisioning", "active", "parked", "interrupted", "ending")
_OFFERED = 50  # on TAB
_TAB_TIMEOUT_S = 3.0  # a shell that hangs on TAB is worse than one that offers nothing


def lease(client: Client, text: str) -> str:
    """Return the id of a lease from its id, or from the name of one that lives.

    Raises NotNamed when no lease or more than one bears the name.
    """
    if text.startswith("lease_"):
        return text
    found = client.leases.list(name=text, state=list(_LIVING)).first(3)
    if len(found) == 1:
        return found[0].id
    if not found:
        raise NotNamed(f"No living lease is called {text!r}: `gpuyard ps` lists them, with ids and names.")
    ids = " ".join(each.id for each in found)
    raise NotNamed(f"More than one lease is called {text!r}; say which: {ids}")


def host(client: Client, text: str) -> str:
    """Return the id of a host from its id or its name. Raises NotNamed when none or more than one bears the name."""
    if text.startswith("host_"):
        return text
    found = client.hosts.list(name=text).first(3)
    if len(found) == 1:
        return found[0].id
    if not found:
        raise NotNamed(f"You have no host {text!r}: `gpuyard host list` lists them, with ids and names.")
    raise NotNamed(f"More than one host is called {text!r}; say which: {' '.join(each.id for each in found)}")


def one(found: Iterable[Any], text: str, *, what: str, by: str = "name") -> str:
    """Return the id of the item whose id or `by` is `text`. Raises NotNamed, with what there is, if there is none."""
    rows = [item.to_dict() for item in found]
    named = [row for row in rows if text in (row.get("id"), row.get(by))]
    if len(named) == 1:
        return str(named[0]["id"])
    known = " ".join(sorted(str(row.get(by)) for row in rows)) or "none yet"
    if not named:
        raise NotNamed(f"There is no {what} {text!r}. There are: {known}.")
    raise NotNamed(f"More than one {what} is called {text!r}; say its id: {' '.join(r['id'] for r in named)}.")


def _offers(list_them: Callable[[Client], list[tuple[str, str]]]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            with Client(timeout_s=_TAB_TIMEOUT_S, tries=1) as client:
                found = list_them(client)
        except GpuyardError:
            return []  # TAB has no place for an error; the command itself will say it
        return [CompletionItem(word, help=what) for word, what in found if word.startswith(incomplete)]

    return complete


def _leases(client: Client) -> list[tuple[str, str]]:
    found = client.leases.list(state=list(_LIVING)).first(_OFFERED)
    ids = [(each.id, f"{each.state} {each.request} {each.name or ''}".rstrip()) for each in found]
    return ids + [(each.name, f"{each.state} {each.request}") for each in found if each.name]


def _hosts(client: Client) -> list[tuple[str, str]]:
    return [(each.id, f"{each.state} {each.name}") for each in client.hosts.list().first(_OFFERED)]


def _images(client: Client) -> list[tuple[str, str]]:
    rows = [each.to_dict() for each in client.images.list().first(_OFFERED)]
    return [(str(row.get("slug")), str(row.get("name") or "")) for row in rows]


def _secrets(client: Client) -> list[tuple[str, str]]:
    return [(str(each.to_dict().get("name")), "") for each in client.secrets.list().first(_OFFERED)]


def _volumes(client: Client) -> list[tuple[str, str]]:
    rows = (each.to_dict() for each in client.volumes.list().first(_OFFERED))
    return [(str(row.get("name")), f"{row.get('size_gib')} GiB") for row in rows]


def _models(client: Client) -> list[tuple[str, str]]:
    return [(each.slug, f"{each.memory_gib} GiB") for each in client.gpu_models.list().first(_OFFERED)]


leases_offered = _offers(_leases)
hosts_offered = _offers(_hosts)
images_offered = _offers(_images)
secrets_offered = _offers(_secrets)
volumes_offered = _offers(_volumes)
models_offered = _offers(_models)


def _resolved[**P, R](name: str, resolve: Callable[[Client, str], str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Replace what was typed by the id it means, once every option is known (--profile may stand behind it)."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def verb(*args: P.args, **kwargs: P.kwargs) -> R:
            typed: Any = kwargs[name]
            client = session().client
            many = isinstance(typed, tuple)
            kwargs[name] = tuple(resolve(client, each) for each in typed) if many else resolve(client, typed)
            return function(*args, **kwargs)

        return verb

    return decorate


def lease_argument[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Add the argument LEASE; the verb receives the id as `lease_id`."""
    made = _resolved("lease_id", lease)(function)
    return click.argument("lease_id", metavar="LEASE", shell_complete=leases_offered)(made)


def leases_argument[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Add the arguments LEASE...; the verb receives the ids as `lease_id`."""
    made = _resolved("lease_id", lease)(function)
    return click.argument("lease_id", metavar="LEASE...", nargs=-1, required=True, shell_complete=leases_offered)(made)


def host_argument[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Add the argument HOST; the verb receives the id as `host_id`."""
    made = _resolved("host_id", host)(function)
    return click.argument("host_id", metavar="HOST", shell_complete=hosts_offered)(made)
