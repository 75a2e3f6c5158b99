"""The platform's addresses as they are where single sign-on is turned on."""

from django.urls import include, path

from config.urls import urlpatterns as ours

urlpatterns = [
    path("accounts/3rdparty/", include("allauth.socialaccount.urls")),
    path("accounts/", include("accounts.single_sign_on_urls")),
    *ours,
]
