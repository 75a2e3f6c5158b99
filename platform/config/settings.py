"""Every setting of the control plane. What differs between environments comes from the environment (env.py)."""

from base64 import b64encode
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from django.utils.csp import CSP

from config import env, log_lines, schedule
from config import sign_in as signing_in
from config.sign_in import *  # noqa: F403 -- every name of it is a setting

BASE_DIR = Path(__file__).resolve().parent.parent.parent

DEBUG = env.flag("DEBUG", default=False)
SECRET_KEY = env.text("SECRET_KEY", "only-for-development" if DEBUG else None)
ALLOWED_HOSTS = env.text("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",")
CSRF_TRUSTED_ORIGINS = [origin for origin in env.text("CSRF_TRUSTED_ORIGINS", "").split(",") if origin]

# A proxy with TLS stands in front, and says so by X-Forwarded-Proto (which it takes from nobody else): people are told
# to come that way, and browsers send cookies on no other. Probes ask the process itself, without TLS.
BEHIND_TLS = env.flag("BEHIND_TLS", default=False)
if BEHIND_TLS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^(livez|readyz|metrics)$"]
    SECURE_HSTS_SECONDS = 365 * 86_400
    SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = env.flag("HSTS_WHOLE_DOMAIN", default=True)
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    # No other host of the domain can set a cookie of this name.
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-session", "__Host-csrf"

INSTALLED_APPS = [
    "console",  # before the admin, whose templates it replaces
    "console.admin_config.OperatorsAdminConfig",  # django.contrib.admin with our own site
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django.contrib.humanize",  # pages of allauth
    "rest_framework",
    "drf_spectacular_sidecar",
    "apikit",
    "audit",
    "accounts",  # before allauth, whose pages it replaces
    "allauth",
    "allauth.account",
    "allauth.mfa",
    *signing_in.oidc_apps(),
    "tenants",
    "outbox",
    "catalogue",
    "billing",
    "agents",
    "leasing",
    "scheduler",
]

MIDDLEWARE = [
    "apikit.requests.RequestIdMiddleware",  # outermost: refusals of the others become problems too
    "console.request_measures.RequestMeasures",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "accounts.sessions.SessionLimits",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
AUTH_USER_MODEL = "accounts.User"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.csp",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# Connections live on in their thread: to open one costs more than most requests. 0 s = no time-out; the doors have some
# (RELIABILITY.md section 2), so that a stuck lock is a 503 and not a thread that never comes back.
_TIMEOUTS_MS = {
    "lock_timeout": 1000 * env.seconds("DATABASE_LOCK_TIMEOUT_S", 0),
    "statement_timeout": 1000 * env.seconds("DATABASE_STATEMENT_TIMEOUT_S", 0),
    "idle_in_transaction_session_timeout": 1000 * env.seconds("DATABASE_IDLE_IN_TRANSACTION_TIMEOUT_S", 0),
}
# The most connections of this process, shared by its threads; 0: each thread keeps its own for a while.
_POOL = env.count("DATABASE_POOL", 0)
DATABASES = {
    "default": env.database(env.text("DATABASE_URL"))
    | {
        "CONN_MAX_AGE": 0 if _POOL else env.seconds("DATABASE_CONN_MAX_AGE_S", 60),
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            "application_name": "gpuyard",
            "options": " ".join(f"-c {name}={value}" for name, value in _TIMEOUTS_MS.items()),
            **({"pool": {"min_size": 1, "max_size": _POOL, "timeout": 60}} if _POOL else {}),
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# People's passwords only; API keys are 190 random bits under SHA-256 (tenants.keys).
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# Nothing from anywhere else, nothing inline. `data:` only for the little pictures in style sheets.
SECURE_CSP = {
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF, CSP.NONCE],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF, "data:"],
    "font-src": [CSP.SELF],
    "connect-src": [CSP.SELF],
    "form-action": [CSP.SELF],
    "base-uri": [CSP.NONE],
    "frame-ancestors": [CSP.NONE],
}

# Who may read /metrics from elsewhere; without it, only callers on this machine.
METRICS_TOKEN = env.text("METRICS_TOKEN", "")
LOGGING = log_lines.logging_of(level=env.text("LOG_LEVEL", "INFO"), form=env.text("LOG_FORM", "json"))
log_lines.configure()

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = ["console.formats"]
STATIC_URL = "static/"
STATIC_ROOT = Path(env.text("STATIC_ROOT", str(BASE_DIR / "static-collected")))

# Secrets at rest: "id:base64 of 32 bytes", commas between, the newest first.
SEALING_KEYS = env.text(
    "SEALING_KEYS", f"development:{b64encode(sha256(SECRET_KEY.encode()).digest()).decode()}" if DEBUG else None
)
# (quota, window in seconds) per policy of apikit.rate_limits, over its defaults.
RATE_LIMITS: dict[str, tuple[int, int]] = {
    "requests": (env.count("RATE_LIMIT_REQUESTS", 1200), 60),
    "lease_create": (env.count("RATE_LIMIT_LEASE_CREATE", 60), 60),
}
# Doors under /api, /agent and /payments that are open to all or guard themselves; the others are OrganizationViews.
DOORS_WITHOUT_POLICY: list[str] = [
    "api/v1/openapi.json", "api/v1/docs",
    "agent/v1/enrol", "agent/v1/sync",
    "agent/v1/releases/<str:sha256>",  # signed, and named by its hash
    "api/v1/market/prices", "api/v1/market/history", "api/v1/market/receipt-keys",  # public
    "payments/<str:provider>/events",  # the provider's signature is the key
]  # fmt: skip

PROBLEM_TYPE_PREFIX = "https://gpuyard.dev/problems/"

REST_FRAMEWORK = {
    "EXCEPTION_HANDLER": "apikit.problems.problem_response",
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.authentication.ApiKeyAuthentication",
        "tenants.authentication.MemberSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["tenants.principal.PolicyPermission"],
    "DEFAULT_PARSER_CLASSES": ["apikit.strict_json.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "UNAUTHENTICATED_USER": None,
}
# Celery is a doorbell: the database holds what is due, so a lost message costs a second and nothing else.
CELERY_BROKER_URL = env.text("CELERY_BROKER_URL", "")
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TIMEZONE = "UTC"
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_ROUTES = {
    "scheduler.place_pending": {"queue": "placement"},
    "scheduler.make_room": {"queue": "placement"},
    "outbox.*": {"queue": "delivery"},
}
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_SOFT_TIME_LIMIT = 20
CELERY_TASK_TIME_LIMIT = 30  # below the visibility timeout, so that nothing runs twice by age
CELERY_TASK_PUBLISH_RETRY = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_PREFETCH = True
CELERY_WORKER_ETA_TASK_LIMIT = 100
CELERY_WORKER_MAX_TASKS_PER_CHILD = 500
CELERY_WORKER_MAX_MEMORY_PER_CHILD = 300_000  # KiB
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 25
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False  # its lines go where all go (LOGGING)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_CONNECTION_TIMEOUT = 2
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 60,
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "socket_timeout": 2,
    "socket_connect_timeout": 2,
    "socket_keepalive": True,
    "health_check_interval": 10,
}
LOOPS = schedule.LOOPS
CELERY_BEAT_SCHEDULE = schedule.beat_schedule()

# How long a host may be silent (AGENT.md section 3). 30 s are six missed syncs of 5 s: one lost packet must not kill a
# customer's run, and a dead host must not be billed for a minute.
HOST_SUSPECT_AFTER_S = env.seconds("HOST_SUSPECT_AFTER_S", 15)
HOST_SILENCE_LIMIT_S = env.seconds("HOST_SILENCE_LIMIT_S", 30)
# Whether the ports of hosts on this machine are dialled too, as those at public addresses are: for tests.
PORT_CHECK_LOOPBACK = env.flag("PORT_CHECK_LOOPBACK", default=False)
HOST_SYNC_HOLD_S = env.seconds("HOST_SYNC_HOLD_S", 5)
# A host not heard since our own start is not lost before this, nor is anybody while many fall silent at once.
HOST_SILENCE_GRACE_AFTER_START_S = env.seconds("HOST_SILENCE_GRACE_AFTER_START_S", 300)
# How long a container may go on without hearing from us, when its lease may restart elsewhere.
WORKLOAD_VALID_FOR_S = env.seconds("WORKLOAD_VALID_FOR_S", 60)
WORKLOAD_STOP_GRACE_S = env.seconds("WORKLOAD_STOP_GRACE_S", 30)
FENCE_MARGIN_S = env.seconds("FENCE_MARGIN_S", 30)
REQUEST_HOLD_MINUTES = env.count("REQUEST_HOLD_MINUTES", 10)
# So long may quotes that are not redeemed hold all of an organization's GPU quota, in 24 hours.
QUOTE_HOLD_S_A_DAY = env.seconds("QUOTE_HOLD_S_A_DAY", 1800)
# So many days of a volume's storage are held in its organization's wallet: so long it is kept once the money is out.
STORAGE_RESERVE_DAYS = env.count("STORAGE_RESERVE_DAYS", 3)
VOLUME_MOST_GIB = env.count("VOLUME_MOST_GIB", 4096)
VOLUMES_PER_ORGANIZATION = env.count("VOLUMES_PER_ORGANIZATION", 100)
# `on_exit: restart` starts a container again so often within the window, then its lease ends.
ON_EXIT_RESTARTS = 3
ON_EXIT_WINDOW = timedelta(minutes=10)
# No lease is reclaimed before it ran so long; it is promised to each when it is made.
RECLAIM_MIN_RUNTIME_S = env.seconds("RECLAIM_MIN_RUNTIME_S", 600)
# So much of all GPUs asked for in the last seven days may have been moved for large requests, in 1/10,000.
MOVES_ALLOWANCE_BP = env.count("MOVES_ALLOWANCE_BP", 75)
COMMISSION_BP = env.count("COMMISSION_BP", 1000)
# Tiers of commission by what an owner earned in the month before (micro-units), and what a host's class takes off it.
COMMISSION_TIERS = (
    (0, COMMISSION_BP), (50_000_000_000, max(0, COMMISSION_BP - 100)), (500_000_000_000, max(0, COMMISSION_BP - 200)),
)  # fmt: skip
COMMISSION_CLASS_DISCOUNT_BP: dict[str, int] = {}
# Stripe takes payments where its key is set; without it, money comes in by transfer and an operator credits it.
STRIPE_API_KEY = env.text("STRIPE_API_KEY", "")
# Without a secret no notification is believed, and the loop asks: an empty one could be signed with by anybody.
STRIPE_WEBHOOK_SECRETS = (
    tuple(filter(None, env.text("STRIPE_WEBHOOK_SECRETS", "").split(","))) if STRIPE_API_KEY else ()
)
STRIPE_URL = env.text("STRIPE_URL", "https://api.stripe.com")
# Connected accounts that owners are paid out to, "ORGANIZATION=acct_...,...", where PAYOUT_PROVIDER is stripe.
STRIPE_ACCOUNTS = dict(pair.split("=", 1) for pair in env.text("STRIPE_ACCOUNTS", "").split(",") if "=" in pair)
PAYMENT_PROVIDERS = ("stripe",) if STRIPE_API_KEY else ()
# Owners are paid out by transfer, what they earned a week ago and before, in amounts worth a transfer.
PAYOUT_PROVIDER = env.text("PAYOUT_PROVIDER", "offline")
PAYOUT_MINIMUM_MICROS = env.count("PAYOUT_MINIMUM_MICROS", 10_000_000)
PAYOUT_HOLD_S = env.seconds("PAYOUT_HOLD_S", 7 * 86_400)
SIMULATED_CURRENCY = "XTS"  # ISO 4217's code for tests: play money, for simulated hardware only
# Where images may come from; a bare name is docker.io's.
IMAGE_REGISTRIES = env.text("IMAGE_REGISTRIES", "docker.io,ghcr.io,nvcr.io,quay.io").split(",")
ALLOW_SIMULATED = env.flag("ALLOW_SIMULATED", default=DEBUG)
# The Ed25519 seed that answers to agents are signed with; they pin its public half when they enrol.
CONTROL_SIGNING_KEY = env.hex_key(
    "CONTROL_SIGNING_KEY", sha256(f"control|{SECRET_KEY}".encode()).hexdigest() if DEBUG else None
)
# The public half of the Ed25519 key that lies offline and certifies who signs releases of the agent; hosts pin it when
# they enrol. Empty: hosts take no releases from here, and their owners update the package.
AGENT_RELEASE_KEY = env.text("AGENT_RELEASE_KEY", "")
# How a whole machine is rebooted when it was given back, before anybody else has it; empty: it is not. A simulated one
# never is.
BARE_METAL_REBOOT = env.text("BARE_METAL_REBOOT", "systemctl reboot")
ENROLMENT_TOKEN_VALID_S = env.seconds("ENROLMENT_TOKEN_VALID_S", 900)
LOG_KEPT_S = env.seconds("LOG_KEPT_S", 7 * 86400)
METRICS_KEPT_S = env.seconds("METRICS_KEPT_S", 7 * 86400)  # what GPUs of leases measured
