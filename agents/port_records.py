"""What is known of whether the ports that an owner gave to the market can be reached from outside."""

from django.db import models


class PortCheck(models.Model):
    """The last look at a host's ports, and the one that is under way while `answer_by` is set.

    reachable: None until the first look, and for hosts that cannot be looked at. first, end: the range that was looked
    at, [first, end), at `address`: where either is another one now, what was found says nothing.
    """

    host = models.OneToOneField("agents.Host", models.CASCADE, related_name="port_check", primary_key=True)
    address = models.CharField(max_length=64, blank=True)
    first = models.PositiveIntegerField(default=0)
    end = models.PositiveIntegerField(default=0)
    reachable = models.BooleanField(null=True)
    closed = models.JSONField(default=list, blank=True)  # ports at which the host was not reached
    failures = models.PositiveIntegerField(default=0)  # looks in a row
    checked_at = models.DateTimeField(null=True, blank=True)
    next_at = models.DateTimeField(null=True, blank=True)

    # The look that is under way.
    word = models.CharField(max_length=32, blank=True)  # what the agent says at each of them
    ports = models.JSONField(default=list, blank=True)
    listening = models.JSONField(null=True, blank=True)  # where it says that it listens; None: it has not answered
    answer_by = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"ports {self.first}-{self.end - 1} of host {self.host_id}"
