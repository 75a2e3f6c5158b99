from django.apps import AppConfig


class LeasingConfig(AppConfig):
    name = "leasing"
