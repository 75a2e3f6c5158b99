"""Which payment providers this installation has: none without their keys, and every door says so."""

from django.conf import settings

from billing.providers import OpensPayments


def configured() -> dict[str, OpensPayments]:
    """Return the adapters by name. Stripe is there where STRIPE_API_KEY is set."""
    if not settings.STRIPE_API_KEY:
        return {}
    from billing.stripe_calls import Stripe  # an HTTP client, which nobody else needs

    adapter = Stripe(api_key=settings.STRIPE_API_KEY, accounts=settings.STRIPE_ACCOUNTS, url=settings.STRIPE_URL)
    return {adapter.name: adapter}
