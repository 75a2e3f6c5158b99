"""Pages of single sign-on, below /accounts/; by the names that allauth looks for."""

from django.urls import path

from accounts import single_sign_on

urlpatterns = [
    path("oidc/<str:provider_id>/login/", single_sign_on.login, name="openid_connect_login"),
    path("oidc/<str:provider_id>/login/callback/", single_sign_on.callback, name="openid_connect_callback"),
]
