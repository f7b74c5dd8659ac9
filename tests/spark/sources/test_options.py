"""What is masked in the options of Kafka and on the command line, and what stays readable."""

from __future__ import annotations

import pytest

from cojoin.cli.options import secrets_of
from cojoin.kafka.client import ClusterOptions
from cojoin.spark.sources.options import Secrets, logins, without_login
from cojoin.storage.locations import may_be_secret

JAAS = 'PlainLoginModule required username="ali" password="opensesame";'
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSj==\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("name", "value", "text", "masked"),
    [
        ("sasl.password", "opensesame", "opensesame refused", "*** refused"),
        ("sasl.jaas.config", JAAS, f"got {JAAS}", "got ***"),
        (
            "sasl.jaas.config",
            JAAS,
            "the login of ali with opensesame, not of alina",
            "the login of *** with ***, not of alina",
        ),
        ("sasl.oauthbearer.config", "principal=me secret=opensesame", "opensesame of me", "*** of ***"),
        ("ssl.key.pem", PEM, f"no key: {PEM}", "no key: ***"),
        ("ssl.key.pem", PEM, f"no key: {PEM!r}", r"no key: '***\n***\n***\n***\n'"),
        ("ssl.key.pem", PEM, "rows in = done + buffered", "rows in = done + buffered"),
        ("ssl.key.pem", PEM, "at AQEFAASCBKcwggSj==", "at ***"),
        ("sasl.password", "b", "b, not abba or 'b'", "***, not abba or '***'"),
        ("basic.auth.user.info", "me:it", "401 for me:it", "401 for ***"),
        ("fs.azure.sas.lake", "sv=2024", "sv=2024 of 2024", "*** of ***"),
        ("https.proxy", "http://me:opensesame@proxy:80", "opensesame", "***"),
        ("https.proxy", "http://me:opensesame@proxy:80", "no proxy at http://me:opensesame@proxy:80", None),
        ("client.id", "us", "us", "us"),
        ("sasl.mechanism", "PLAIN", "Unsupported mechanism: PLAIN", "Unsupported mechanism: PLAIN"),
        ("sasl.username", "ali", "no such user: ali", "no such user: ali"),
        ("sasl.oauthbearer.method", "oidc", "Invalid value oidc", "Invalid value oidc"),
        ("security.protocol", "SASL_SLL", "Invalid value SASL_SLL", "Invalid value SASL_SLL"),
        ("sasl.kerberos.service.name", "kafka", "not a kafka broker", "not a kafka broker"),
    ],
)
def test_both_mask_the_same(name: str, value: str, text: str, masked: str | None) -> None:
    options = ClusterOptions("one:9092", {name: value}).mask(text)
    assert options == masked or masked is None
    for words in ([f"--conf={name}={value}"], ["--conf", f"{name}={value}"]):
        assert secrets_of(words).mask(text) == masked or masked is None
        assert "opensesame" not in secrets_of(words).mask(text)
    assert "opensesame" not in options


def test_a_long_value_of_any_option_is_masked_on_the_command_line_alone() -> None:
    text = "Invalid value SASL_PLAINTEXT"
    assert secrets_of(["--conf=security.protocol=SASL_PLAINTEXT"]).mask(text) == "Invalid value ***"
    assert ClusterOptions("one:9092", {"security.protocol": "SASL_PLAINTEXT"}).mask(text) == text


@pytest.mark.parametrize(
    ("words", "text", "masked"),
    [
        (["--cofn", "x.password=opensesame"], "opensesame", "***"),
        (["--conf", "opensesame"], "opensesame", "***"),
        (["--rigth", "password=opensesame"], "opensesame", "***"),
        (["--rigth=password=opensesame"], "opensesame", "***"),
        (["--output", "delta:s3a://me:opensesame@lake/trades"], "opensesame", "***"),
        (["--output", "delta:s3a://me:opensesame@lake/trades"], "lake/trades", "lake/trades"),
        (["--name", "customer_id", "--every", "1 hour"], "customer_id 1 hour", "customer_id 1 hour"),
        (["--retained-checkpoints=2"], "2 rows", "2 rows"),
        ([], "", ""),
    ],
)
def test_words_without_an_options_name_are_read_too(words: list[str], text: str, masked: str) -> None:
    assert secrets_of(words).mask(text) == masked


def test_the_longest_value_is_masked_first() -> None:
    assert Secrets(["open", "opensesame", ""]).mask("opensesame, open") == "***, ***"


def test_a_setting_may_have_any_type() -> None:
    assert Secrets.of_settings({"token": 4711, "retries": 4712}).mask("4711 4712") == "*** 4712"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("delta:s3a://me:opensesame@lake/trades", "delta:s3a://***@lake/trades"),
        ("s3a://me:open@sesame@lake/trades", "s3a://***@lake/trades"),
        ("https://opensesame@host, then http://me:opensesame@host/x", "https://***@host, then http://***@host/x"),
        ("abfss://lake@shop.dfs.core.windows.net/trades", "abfss://lake@shop.dfs.core.windows.net/trades"),
        ("wasb://lake@shop.blob.core.windows.net/trades", "wasb://lake@shop.blob.core.windows.net/trades"),
        ("s3a://lake/trades@v1", "s3a://lake/trades@v1"),
        ("write to me@example.org", "write to me@example.org"),
    ],
)
def test_a_url_is_shown_without_its_login(text: str, shown: str) -> None:
    assert without_login(text) == shown
    assert Secrets([]).mask(text) == shown


def test_the_password_of_a_login_is_a_secret_by_itself() -> None:
    assert logins("s3a://me:opensesame@lake and https://token@host") == {"me:opensesame", "opensesame", "token"}
    assert logins("abfss://lake@shop.dfs.core.windows.net/trades") == set()


@pytest.mark.parametrize(
    "name",
    [
        *("sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.certificate.pem", "sasl.oauthbearer.config"),
        *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.token.endpoint.url", "sasl.jaas.config"),
        *("spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "fs.azure.sas.fixed", "PRIVATE_ID"),
        *("basic.auth.user.info", "spark.authenticate.secret", "google.credentials", "ssl.passphrase"),
    ],
)
def test_these_names_suggest_a_secret(name: str) -> None:
    assert may_be_secret(name)
