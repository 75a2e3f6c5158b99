"""The one-machine mode: PostgreSQL and the broker from wheels, the control plane's processes and a simulated pool.

`python -m embedded up` starts it and `down` ends it. Everything that runs is what runs in production; only
`DATABASE_URL` and `CELERY_BROKER_URL` differ.
"""
