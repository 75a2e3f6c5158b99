"""Signatures as the Standard Webhooks specification has them."""

from outbox import signing


def test_the_example_of_the_specifications_libraries_is_signed_alike() -> None:
    headers = signing.headers(
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp=1614265330,
        body='{"test": 2432232314}',
        secrets_=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
    )

    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_while_rotating_both_secrets_sign() -> None:
    old, new = signing.make_secret(), signing.make_secret()

    both = signing.headers(message_id="m", timestamp=1, body="{}", secrets_=[new, old])["webhook-signature"].split(" ")

    for secret, signature in zip((new, old), both, strict=True):
        alone = signing.headers(message_id="m", timestamp=1, body="{}", secrets_=[secret])
        assert alone["webhook-signature"] == signature
