"""The control: django-hordak, one process, in an environment of its own. Reads "transfer N" or "checked N" lines and
answers with the seconds that N took.

checked: lock the account, ask for its balance, transfer if it covers the amount: what an application on it must do.
"""

import os
import sys
import time
from urllib.parse import unquote, urlsplit


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
    from django.db import transaction
    from hordak.models import Account
    from moneyed import Money

    call_command("migrate", verbosity=0)
    wallet = Account.objects.create(name="wallet", type="LI", currencies=["USD"], code="1")
    usage = Account.objects.create(name="usage", type="LI", currencies=["USD"], code="2")
    usage.transfer_to(wallet, Money("1000000.00", "USD"))
    cent = Money("0.01", "USD")

    def checked() -> None:
        with transaction.atomic():
            row = Account.objects.select_for_update().get(pk=wallet.pk)
            if row.get_balance()["USD"] >= cent:
                row.transfer_to(usage, cent)

    acts = {"transfer": lambda: wallet.transfer_to(usage, cent), "checked": checked}
    print("ready", flush=True)
    for line in sys.stdin:
        name, count = line.split()
        start = time.perf_counter()
        for _ in range(int(count)):
            acts[name]()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
