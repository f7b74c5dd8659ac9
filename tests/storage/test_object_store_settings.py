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
        ({PROVIDER: "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"}, None),
        (
            {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "arn:aws:kms:x:key/1"},
            {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": "arn:aws:kms:x:key/1"},
        ),
        ({"fs.s3a.encryption.algorithm": "DSSE-KMS"}, {"aws_server_side_encryption": "aws:kms:dsse"}),
        ({"fs.s3a.server-side-encryption-algorithm": "AES256"}, {"aws_server_side_encryption": "AES256"}),
        # A bucket's setting under its old name is before all buckets' under the new one.
        (
            {"fs.s3a.bucket.lake.server-side-encryption-algorithm": "SSE-C", "fs.s3a.encryption.algorithm": "AES256"},
            None,
        ),
        ({"fs.s3a.encryption.algorithm": "CSE-KMS", "fs.s3a.encryption.key": "K"}, None),
        ({"fs.s3a.endpoint.region": "cn-north-1"}, None),
        (
            {"fs.s3a.endpoint": "s3.cn-north-1.amazonaws.com.cn"},
            {
                "endpoint": "https://lake.s3.cn-north-1.amazonaws.com.cn",
                "virtual_hosted_style_request": True,
                "region": "cn-north-1",
            },
        ),
    ],
)
def test_s3(given: dict[str, str], expected: dict[str, Any] | None) -> None:
    assert of("s3a://lake/my checkpoint", given) == expected


@pytest.mark.parametrize(
    ("endpoint", "region"),
    [
        ("s3.dualstack.eu-west-1.amazonaws.com", "eu-west-1"),
        ("https://s3-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("vpce-1a-2b.s3.us-west-2.vpce.amazonaws.com", "us-west-2"),
        ("s3-external-1.amazonaws.com", "us-east-1"),
        ("s3-eu-west-1.amazonaws.com", "eu-west-1"),
    ],
)
def test_an_endpoint_of_amazon_names_its_region(endpoint: str, region: str) -> None:
    options = of("s3a://lake/trades", {"fs.s3a.endpoint": endpoint})
    assert options is not None
    assert options["region"] == region


def test_an_accelerated_endpoint_needs_a_region() -> None:
    accelerated = {"fs.s3a.endpoint": "s3-accelerate.amazonaws.com"}
    assert of("s3a://lake/trades", accelerated) is None
    options = of("s3a://lake/trades", {**accelerated, "fs.s3a.endpoint.region": "eu-west-1"})
    assert options is not None
    assert (options["endpoint"], options["region"]) == ("https://lake.s3-accelerate.amazonaws.com", "eu-west-1")


@pytest.mark.parametrize(
    ("root", "name", "value"),
    [
        ("s3a://lake/trades", "fs.s3a.proxy.host", "proxy.example"),
        ("s3a://lake/trades", "fs.s3a.bucket.lake.proxy.host", "proxy.example"),
        ("s3a://lake/trades", "fs.s3a.bucket.lake.accesspoint.arn", "arn:aws:s3:eu-west-1:1:accesspoint/a"),
        ("s3a://lake/trades", "fs.s3a.security.credential.provider.path", "jceks://hdfs/a"),
        ("s3a://lake/trades", "fs.s3a.requester.pays.enabled", "true"),
        ("s3a://lake/trades", "fs.s3a.acl.default", "BucketOwnerFullControl"),
        ("gs://lake/trades", "fs.gs.encryption.key", "K"),
        ("gs://lake/trades", "fs.gs.auth.impersonation.service.account", "me@shop.iam.gserviceaccount.com"),
        ("gs://lake/trades", "google.cloud.auth.type", "USER_CREDENTIALS"),
        ("gs://lake/trades", "fs.gs.auth.service.account.private.key", "K"),
        ("gs://lake/trades", "fs.gs.requester.pays.mode", "AUTO"),
        (f"abfss://lake@{ACCOUNT}/x", f"fs.azure.encryption.encoded.client-provided-key.{ACCOUNT}", "K"),
        (f"abfss://lake@{ACCOUNT}/x", f"fs.azure.account.keyprovider.{ACCOUNT}", "my.Provider"),
        ("abfss://lake@shop.dfs.core.chinacloudapi.cn/x", "fs.azure.account.key", "K"),
        ("abfss://lake@shop.dfs.core.usgovcloudapi.net/x", "fs.azure.account.key", "K"),
        ("abfss://lake@onelake.dfs.fabric.microsoft.com/x", "fs.azure.account.key", "K"),
    ],
)
def test_a_setting_without_translation_is_left_to_hadoop(root: str, name: str, value: str) -> None:
    assert of(root, {name: value}) is None


def test_switches_that_are_off_and_defaults_of_hadoop_change_nothing() -> None:
    assert of("s3a://lake/trades", {"fs.s3a.requester.pays.enabled": "false", "fs.s3a.proxy.host": ""}) == {}
    assert of("gs://lake/trades", {"fs.gs.auth.type": "COMPUTE_ENGINE", "fs.gs.requester.pays.mode": "DISABLED"}) == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {
                "fs.azure.account.auth.type": "OAuth",
                "fs.azure.account.oauth.provider.type": "x.WorkloadIdentityTokenProvider",
                "fs.azure.account.oauth2.client.id": "me",
                "fs.azure.account.oauth2.msi.tenant": "my-tenant",
                "fs.azure.account.oauth2.token.file": "/token",
            },
            {"account_name": "shop", "client_id": "me", "tenant_id": "my-tenant", "federated_token_file": "/token"},
        ),
        (
            {
                "fs.azure.account.auth.type": "OAuth",
                "fs.azure.account.oauth.provider.type": "x.ClientCredsTokenProvider",
                "fs.azure.account.oauth2.client.id": "me",
                "fs.azure.account.oauth2.client.secret": "opensesame",
                "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.us/my-tenant/oauth2/token",
            },
            None,
        ),
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


@pytest.mark.parametrize("algorithm", ["AES256", "SSE-KMS", "DSSE-KMS"])
def test_a_client_takes_the_encryption_of_s3(algorithm: str) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    encrypted = {"fs.s3a.encryption.algorithm": algorithm, "fs.s3a.encryption.key": "K"}
    settings = settings_of("s3a://lake/trades", encrypted.get)
    assert settings is not None
    assert client_of(settings).config["server_side_encryption"] == settings.options["aws_server_side_encryption"]
