"""Spark's settings of object stores, as a client without the JVM takes them; the rest is left to Hadoop."""

from __future__ import annotations

from typing import Any

import pytest

from cojoin.storage.object_store_settings import client_of, settings_of

KEYS = {"fs.s3a.access.key": "AK", "fs.s3a.secret.key": "opensesame"}
PROVIDER = "fs.s3a.aws.credentials.provider"
ACCOUNT = "shop.dfs.core.windows.net"


def of(root: str, given: dict[str, str]) -> dict[str, Any] | None:
    settings = settings_of(root, given.get)
    return None if settings is None else dict(settings.options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        (KEYS, {"access_key_id": "AK", "secret_access_key": "opensesame"}),
        (
            {**KEYS, "fs.s3a.session.token": "T"},
            {"access_key_id": "AK", "secret_access_key": "opensesame", "session_token": "T"},
        ),
        ({PROVIDER: "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"}, {"skip_signature": True}),
        # Where both are allowed, keys that are set are meant.
        (
            {
                **KEYS,
                PROVIDER: "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider, x.AnonymousAWSCredentialsProvider",
            },
            {"access_key_id": "AK", "secret_access_key": "opensesame"},
        ),
        # Keys that the providers do not read are not used.
        ({**KEYS, PROVIDER: "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"}, {}),
        ({PROVIDER: "com.mycompany.VaultProvider"}, None),
        ({"hadoop.security.credential.provider.path": "jceks://hdfs/a"}, None),
        ({"fs.s3a.endpoint.region": "eu-central-1"}, {"region": "eu-central-1"}),
        ({"fs.s3a.bucket.lake.endpoint.region": "eu-west-1", "fs.s3a.endpoint.region": "x"}, {"region": "eu-west-1"}),
        (
            {
                "fs.s3a.endpoint": "minio:9000",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.connection.ssl.enabled": "false",
            },
            {"endpoint": "http://minio:9000", "client_options": {"allow_http": True}, "region": "us-east-1"},
        ),
        (
            {"fs.s3a.endpoint": "https://store.example"},
            {"endpoint": "https://lake.store.example", "virtual_hosted_style_request": True, "region": "us-east-1"},
        ),
        ({"fs.s3a.endpoint": "s3.amazonaws.com"}, {}),
        (
            {"fs.s3a.endpoint": "https://s3.eu-west-1.amazonaws.com"},
            {"region": "eu-west-1"},
        ),
    ],
)
def test_s3(given: dict[str, str], expected: dict[str, Any] | None) -> None:
    assert of("s3a://lake/my checkpoint", given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({f"fs.azure.account.key.{ACCOUNT}": "K"}, {"account_name": "shop", "account_key": "K"}),
        ({}, {"account_name": "shop"}),
        (
            {"fs.azure.account.auth.type": "SAS", "fs.azure.sas.fixed.token": "S"},
            {"account_name": "shop", "sas_key": "S"},
        ),
        ({"fs.azure.account.auth.type": "Custom"}, None),
        (
            {
                f"fs.azure.account.auth.type.{ACCOUNT}": "OAuth",
                "fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
                "fs.azure.account.oauth2.client.id": "me",
                "fs.azure.account.oauth2.client.secret": "opensesame",
                "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/my-tenant/oauth2/token",
            },
            {"account_name": "shop", "client_id": "me", "client_secret": "opensesame", "tenant_id": "my-tenant"},
        ),
        (
            {
                "fs.azure.account.auth.type": "OAuth",
                "fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.MsiTokenProvider",
            },
            {"account_name": "shop"},
        ),
        (
            {
                "fs.azure.account.auth.type": "OAuth",
                "fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.UserPasswordTokenProvider",
            },
            None,
        ),
    ],
)
def test_azure(given: dict[str, str], expected: dict[str, Any] | None) -> None:
    assert of(f"abfss://lake@{ACCOUNT}/trades", given) == expected


def test_google() -> None:
    assert of("gs://lake/trades", {}) == {}
    name = "google.cloud.auth.service.account.json.keyfile"
    assert of("gs://lake/trades", {name: "/keys/me.json"}) == {"service_account": "/keys/me.json"}
    assert of("gs://lake/trades", {"fs.gs.auth.access.token.provider": "my.Provider"}) is None


@pytest.mark.parametrize("root", ["/lake/trades", "file:/lake/trades", "hdfs://host/lake", "dbfs:/lake", "s3a:///lake"])
def test_what_is_on_no_object_store_has_no_settings(root: str) -> None:
    assert settings_of(root, {}.get) is None


def test_a_root_has_its_place_and_shows_no_secret() -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    settings = settings_of("s3a://lake/my trades#1/", KEYS.get)
    assert settings is not None
    assert (settings.bucket, settings.prefix) == ("lake", "my trades#1")
    assert "opensesame" not in repr(settings)
    assert "opensesame" not in repr(client_of(settings))
