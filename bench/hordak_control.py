"""The control: django-hordak, one process, in an environment of its own. Reads "transfer N", "checked N" or "fresh N"
lines and answers with the seconds that N took.

checked: lock the account, ask for its balance, transfer if it covers the amount: what an application on it must do. The
account has HISTORY transfers, a year of hourly usage; its balance is the sum of them. fresh: the same without them.
The balance is asked for in the way that hordak's own documentation calls the faster one (`with_balances`).
"""

import os
import sys
import time
from typing import Any
from urllib.parse import unquote, urlsplit

HISTORY = int(os.environ.get("HISTORY", "0"))


def main() -> None:
    url = urlsplit(os.environ["DATABASE_URL"])
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "mptt", "djmoney", "hordak"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": url.hostname,
                "PORT": url.port,
                "USER": url.username,
                "PASSWORD": unquote(url.password or ""),
                "NAME": url.path.strip("/"),
                "CONN_MAX_AGE": None,
            }
        },
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        SECRET_KEY="bench",
        CURRENCIES=["USD"],
        DEFAULT_CURRENCY="USD",
        HORDAK_CURRENCIES=["USD"],
        HORDAK_DEFAULT_CURRENCY="USD",
    )
    django.setup()
    from django.core.management import call_command
    from django.db import connection, transaction
    from hordak.models import Account, Leg, Transaction
    from moneyed import Money

    call_command("migrate", verbosity=0)
    wallet = Account.objects.create(name="wallet", type="LI", currencies=["USD"], code="1")
    usage = Account.objects.create(name="usage", type="LI", currencies=["USD"], code="2")
    usage.transfer_to(wallet, Money("1000000.00", "USD"))
    cent = Money("0.01", "USD")

    aged = Account.objects.create(name="aged", type="LI", currencies=["USD"], code="3")
    usage.transfer_to(aged, Money("1000000.00", "USD"))
    with transaction.atomic():
        past = Transaction.objects.bulk_create(Transaction() for _ in range(HISTORY))
        # A liability falls by its debit and the other rises by its credit, as transfer_to writes it.
        Leg.objects.bulk_create(
            leg for one in past for leg in (Leg(transaction=one, account=aged, debit=cent),
                                            Leg(transaction=one, account=usage, credit=cent))
        )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")

    def checked(account: Any) -> None:
        with transaction.atomic():
            row = Account.objects.select_for_update().get(pk=account.pk)
            if Account.objects.with_balances().get(pk=row.pk).balance["USD"] >= cent:
                row.transfer_to(usage, cent)

    acts = {
        "transfer": lambda: wallet.transfer_to(usage, cent), "fresh": lambda: checked(wallet),
        "checked": lambda: checked(aged),
    }  # fmt: skip
    print("ready", flush=True)
    for line in sys.stdin:
        name, count = line.split()
        start = time.perf_counter()
        for _ in range(int(count)):
            acts[name]()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
