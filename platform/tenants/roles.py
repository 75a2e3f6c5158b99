"""Who may do what: one table of permissions, the roles that have each, and the scope that a key needs for it."""

from collections.abc import Mapping

from tenants.models import Role

_ALL = frozenset(Role)
_MANAGERS = frozenset({Role.OWNER, Role.ADMIN})

# The table of API.md section 2. A permission that is not here does not exist: a door that names it does not start.
ROLES: Mapping[str, frozenset[Role]] = {
    "leases:read": _ALL,
    "leases:write": _MANAGERS | {Role.DEVELOPER},
    "hosts:read": _ALL,
    "hosts:write": _MANAGERS,
    "billing:read": _MANAGERS | {Role.BILLING},
    "billing:write": frozenset({Role.OWNER, Role.BILLING}),
    "members:read": _MANAGERS,
    "members:write": _MANAGERS,
    "keys:read": _ALL,  # one's own
    "keys:write": _ALL,  # one's own
    "keys_of_others:read": _MANAGERS,
    "keys_of_others:write": _MANAGERS,
    "webhooks:read": _MANAGERS,
    "webhooks:write": _MANAGERS,
    "audit:read": _MANAGERS | {Role.BILLING},
    "owners:write": frozenset({Role.OWNER}),
}

# The scope of a permission that has none of its own name.
_SCOPES = {
    "keys_of_others:read": "keys:read",
    "keys_of_others:write": "keys:write",
    "audit:read": "members:read",
    "owners:write": "members:write",
}
SCOPES: tuple[str, ...] = tuple(permission for permission in ROLES if permission not in _SCOPES)


def scope_of(permission: str) -> str:
    return _SCOPES.get(permission, permission)


def permissions(
    *, role: Role | None, scopes: frozenset[str] | None, group_roles: frozenset[Role] = frozenset()
) -> frozenset[str]:
    """Return what a caller may do: what his role or one of his groups allows *and* his key's scopes allow.

    role None: a key made by the platform, bounded by its scopes alone. scopes None: a person, bounded by the roles.
    """
    return frozenset(
        permission
        for permission, allowed in ROLES.items()
        if (role is None or role in allowed or group_roles & allowed)
        and (scopes is None or scope_of(permission) in scopes)
    )


def of_role(role: Role) -> frozenset[str]:
    return permissions(role=role, scopes=None)


def scopes_within(held: frozenset[str]) -> frozenset[str]:
    """Return the scopes that somebody with the permissions `held` may give to a key."""
    return frozenset(scope_of(permission) for permission in held)
