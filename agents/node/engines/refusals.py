"""What a container engine means by the sentences with which it refuses."""


def cannot_be_killed(message: str) -> bool:
    return any(words in message for words in ("did not receive an exit event", "cannot kill", "tried to kill"))


def failure_of(message: str, otherwise: str) -> str:
    """Return which of protocol.FAILURES an engine's sentence means."""
    words = message.lower()
    if "no space left" in words:
        return "disk_full"
    if "port is already allocated" in words or "address already in use" in words or "no free port" in words:
        return "port_exhausted"
    if "could not select device driver" in words or "unresolvable cdi" in words:
        return "cdi_stale"
    if "no such image" in words:
        return "image_not_found"
    return otherwise


def has_no_quota(message: str) -> bool:
    """Return whether the engine's storage cannot limit how much a container writes to its root file system."""
    return "storage-opt" in message.lower() or "storage opt" in message.lower()


def has_no_volume_quota(message: str) -> bool:
    """Return whether the engine's file system cannot keep a volume to its size."""
    return "no quota support" in message.lower()
