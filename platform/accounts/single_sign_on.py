"""Single sign-on by OpenID Connect: allauth's, and what it leaves out of OpenID Connect Core (3.1.3.7, 5.3.2).

The id_token must be there, signed by a key that the issuer publishes (also where it came over TLS), for us alone, not
expired, and with the nonce of this very sign-in; what the provider says of the person must be of the same person.
"""

import hmac
import secrets
from typing import Any

import jwt
from allauth.account.internal.decorators import login_not_required
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.models import SocialApp
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView, OAuth2LoginView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

ALGORITHMS = ["RS256", "PS256", "ES256", "EdDSA"]  # with keys that the issuer publishes; never "none", never ours
CLOCKS_DIFFER_S = 30
WELL_KNOWN = "/.well-known/openid-configuration"


class Adapter(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]
    """One sign-in. `nonce`: what its id_token must hold."""

    nonce = ""

    def complete_login(self, request: HttpRequest, app: Any, token: Any, **kwargs: Any) -> Any:
        claims = self._decode_id_token(app, kwargs["response"].get("id_token") or "")
        if not self.nonce or not hmac.compare_digest(str(claims.get("nonce", "")).encode(), self.nonce.encode()):
            raise OAuth2Error("The id_token is not of this sign-in.")
        said = claims
        if "userinfo_endpoint" in self.openid_config:
            said = self._fetch_user_info(token.token)
            if said.get("sub") != claims["sub"]:
                raise OAuth2Error("The provider speaks of two people.")
        return self.get_provider().sociallogin_from_response(request, {"userinfo": said, "id_token": claims})

    def _decode_id_token(self, app: Any, id_token: str) -> dict[str, Any]:
        issuer = app.settings["server_url"].removesuffix(WELL_KNOWN).rstrip("/")
        named = str(self.openid_config["issuer"])
        if named.rstrip("/") != issuer:
            raise OAuth2Error("The provider calls itself by another name.")
        try:
            claims: dict[str, Any] = jwt.decode(
                id_token, self._key_of(id_token), algorithms=ALGORITHMS, audience=app.client_id, issuer=named,
                leeway=CLOCKS_DIFFER_S, options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.PyJWTError as fault:
            raise OAuth2Error("Invalid id_token") from fault
        if claims.get("azp", app.client_id) != app.client_id or claims["aud"] not in (app.client_id, [app.client_id]):
            raise OAuth2Error("The id_token is for others too.")
        return claims

    def _key_of(self, id_token: str) -> Any:
        """Return the published key that the token names. Raises jwt.PyJWTError, OAuth2Error."""
        kid = jwt.get_unverified_header(id_token).get("kid")
        with get_adapter().get_requests_session() as session:
            answer = session.get(self.openid_config["jwks_uri"])
            answer.raise_for_status()
            published = jwt.PyJWKSet.from_dict(answer.json()).keys
        fitting = [key for key in published if kid in (None, key.key_id)]
        if len(fitting) != 1:
            raise OAuth2Error("The provider publishes no such key.")
        return fitting[0]


class SingleSignOn(OpenIDConnectProvider):  # type: ignore[misc]
    oauth2_adapter_class = Adapter

    def get_auth_params_from_request(self, request: HttpRequest, action: str) -> dict[str, Any]:
        """What a link says must not change what the provider is asked."""
        params: dict[str, Any] = self.get_auth_params()
        return params

    def get_scope_from_request(self, request: HttpRequest) -> list[str]:
        scope: list[str] = self.get_scope()
        return scope

    def redirect(
        self, request: HttpRequest, process: str, next_url: str | None = None, data: Any = None, **kwargs: Any
    ) -> Any:
        nonce = secrets.token_urlsafe(32)
        asked = {**(kwargs.pop("auth_params", None) or self.get_auth_params()), "nonce": nonce}
        # What is left of kwargs is kept in the session until the provider sends the person back.
        return super().redirect(request, process, next_url, data, auth_params=asked, nonce=nonce, **kwargs)


class _Callback(OAuth2CallbackView):  # type: ignore[misc]
    def _get_state(self, request: HttpRequest, provider: Any) -> Any:
        state, refusal = super()._get_state(request, provider)
        self.adapter.nonce = (state or {}).get("nonce", "")
        return state, refusal


@login_not_required  # type: ignore[untyped-decorator]
def login(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    return _view(OAuth2LoginView, request, provider_id)


@login_not_required  # type: ignore[untyped-decorator]
def callback(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    return _view(_Callback, request, provider_id)


def _view(kind: Any, request: HttpRequest, provider_id: str) -> HttpResponseBase:
    try:
        response: HttpResponseBase = kind.adapter_view(Adapter(request, provider_id))(request)
    except SocialApp.DoesNotExist:
        raise Http404 from None
    return response
