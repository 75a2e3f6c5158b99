"""Pages on which people sign in, below /accounts/.

Not all of allauth's: an address is how an organization names a member, so nobody changes his own, and nobody signs up.
`account_signup` is there because the page to sign in asks for its address; it says that it is closed.
"""

from allauth.account import views
from django.apps import apps
from django.urls import URLPattern, URLResolver, include, path, re_path

urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", views.login, name="account_login"),
    path("logout/", views.logout, name="account_logout"),
    path("inactive/", views.account_inactive, name="account_inactive"),
    path("signup/", views.signup, name="account_signup"),
    path("reauthenticate/", views.reauthenticate, name="account_reauthenticate"),
    path("password/change/", views.password_change, name="account_change_password"),
    path("password/set/", views.password_set, name="account_set_password"),
    path("password/reset/", views.password_reset, name="account_reset_password"),
    path("password/reset/done/", views.password_reset_done, name="account_reset_password_done"),
    re_path(
        r"^password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        views.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    path("password/reset/key/done/", views.password_reset_from_key_done, name="account_reset_password_from_key_done"),
    path("2fa/", include("allauth.mfa.urls")),
]

if apps.is_installed("allauth.socialaccount"):
    urlpatterns += [
        path("3rdparty/", include("allauth.socialaccount.urls")),
        path("", include("accounts.single_sign_on_urls")),
    ]
