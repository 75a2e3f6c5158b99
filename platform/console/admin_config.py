from django.contrib.admin.apps import AdminConfig


class OperatorsAdminConfig(AdminConfig):
    """Django's admin, with a first page of ours. Not in apps.py: Django takes only one configuration from there."""

    default_site = "console.operators.OperatorsSite"
