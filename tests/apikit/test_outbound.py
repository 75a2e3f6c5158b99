"""The guard of outgoing calls: which addresses, which URLs, and what happens to names that turn."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from apikit import outbound
from tests.apikit.tls_receiver import Receiver


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.88.99.1", "198.18.0.1", "203.0.113.1", "224.0.0.1",
        "239.255.255.250", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::ffff:169.254.169.254", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::a9fe:a9fe",
        "64:ff9b::808:808",
        "64:ff9b:1::1", "100::1", "2001::1", "2001:20::1", "2001:db8::1", "2002:a9fe:a9fe::1", "2002:808:808::1",
        "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
        "2606:4700::1%1",
        "", "localhost", "1", "0x7f000001", "127.1", "010.0.0.1",
    ],
)  # fmt: skip
def test_what_is_not_plainly_public_is_forbidden(address: str) -> None:
    assert not outbound.is_public(address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::5"]
)
def test_public_addresses_pass(address: str) -> None:
    assert outbound.is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/", "https://127.0.0.1/x", "https://[64:ff9b::a9fe:a9fe]/", "https://[::1]/",
        "https://2130706433/",
        "https://0x7f000001/", "https://127.1/", "https://0177.0.0.1/", "https://good.example@169.254.169.254/",
        "https://user:pw@example.com/", "https://example.com:8443/", "https://example.com:80/", "https://localhost/",
        "https://example/", "https://example.com#x", "https://example.com/\n", "https://exa mple.com/", "https://",
        "https:///x", "https://example.com\\@evil.example/", "ftp://example.com/", "https://-a.example/", "https://a..b/",
        "https://пример.рф/", "https://example.com:x/", "https://[::1", "https://" + "a" * 500 + ".com/",
        "", "//example.com/",
        "https://１２７.0.0.1/", "https://example.com:0443a/", "https://[fe80::1%25eth0]/", "https://metadata.1/",
    ],
)  # fmt: skip
def test_what_is_no_plain_https_url_is_forbidden(url: str) -> None:
    with pytest.raises(outbound.ForbiddenUrl) as caught:
        outbound.read_url(url)

    assert caught.value.facts["errors"][0]["code"] == "forbidden_url"


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("https://hooks.example.com", "hooks.example.com", "/"),
        ("https://Hooks.Example.com:443/a?b=c&d", "hooks.example.com", "/a?b=c&d"),
        ("https://93.184.216.34/x", "93.184.216.34", "/x"),
        ("https://[2606:4700::1111]/x", "2606:4700::1111", "/x"),
        ("https://xn--e1afmkfd.xn--p1ai/", "xn--e1afmkfd.xn--p1ai", "/"),
    ],
)
def test_plain_https_urls_are_read(url: str, host: str, path: str) -> None:
    assert outbound.read_url(url) == outbound.Target(host, path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def send(receiver: Receiver, addresses: dict[str, list[str]], *, host: str = "hook.test", timeout_s: float = 5) -> int:
    return outbound.post(
        f"https://{host}/in?x=1",
        body=b'{"a": 1}',
        headers={"X-Sign": "s"},
        timeout_s=timeout_s,
        wire=receiver.wire(addresses),
    )


def test_a_call_goes_to_the_address_that_was_checked(receiver: Receiver) -> None:
    status = send(receiver, {"hook.test": ["93.184.216.34"]})

    assert status == 200
    assert receiver.connected == ["93.184.216.34"]
    head, _, body = receiver.received[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /in?x=1 HTTP/1.1\r\nHost: hook.test\r\n")
    assert b"X-Sign: s" in head
    assert body == b'{"a": 1}'


def test_one_forbidden_address_among_many_is_enough(receiver: Receiver) -> None:
    with pytest.raises(outbound.ForbiddenUrl):
        send(receiver, {"hook.test": ["93.184.216.34", "127.0.0.1"]})

    assert receiver.connected == []


def test_a_name_that_does_not_resolve_fails_as_a_call(receiver: Receiver) -> None:
    with pytest.raises(outbound.CallFailed, match="does not resolve"):
        send(receiver, {"hook.test": []} | {"other.test": ["1.1.1.1"]}, host="missing.test")


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n"

    assert send(receiver, {"hook.test": ["93.184.216.34"]}) == 302
    assert receiver.connected == ["93.184.216.34"]


def test_a_certificate_of_another_name_is_refused(receiver: Receiver) -> None:
    with pytest.raises(outbound.CallFailed, match="TLS"):
        send(receiver, {"other.test": ["93.184.216.34"]}, host="other.test")

    assert receiver.received == []


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n", b"HTTP/1.1 999 x\r\n\r\n", b"", b"x" * 70_000])
def test_what_is_no_http_fails(receiver: Receiver, answer: bytes) -> None:
    receiver.answer = answer

    with pytest.raises(outbound.CallFailed, match="no HTTP"):
        send(receiver, {"hook.test": ["93.184.216.34"]})


def test_a_receiver_that_drips_is_cut_at_the_deadline(receiver: Receiver) -> None:
    receiver.drip_s = 0.05
    receiver.answer = b"HTTP/1.1 200 " + b"x" * 1000 + b"\r\n\r\n"
    started = time.monotonic()

    with pytest.raises(outbound.CallFailed, match="in time"):
        send(receiver, {"hook.test": ["93.184.216.34"]}, timeout_s=0.5)

    assert time.monotonic() - started < 2


def test_a_gigabyte_is_not_read(receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 200 OK\r\n\r\n"
    receiver.endless = True
    started = time.monotonic()

    assert send(receiver, {"hook.test": ["93.184.216.34"]}) == 200
    assert time.monotonic() - started < 2


def test_proxy_variables_are_not_read(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    called = threading.Event()

    def accept() -> None:
        try:
            listener.accept()
        except OSError:
            return
        called.set()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")

    assert send(receiver, {"hook.test": ["93.184.216.34"]}) == 200
    assert not called.is_set()
    listener.close()
