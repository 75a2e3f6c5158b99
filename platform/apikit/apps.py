from django.apps import AppConfig


class ApikitConfig(AppConfig):
    name = "apikit"
