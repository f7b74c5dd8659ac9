"""Spark's settings of an object store, translated for libraries that reach it without the JVM.

A setting ``fs.*`` may be in Hadoop's configuration or in Spark's, where its name begins with ``spark.hadoop.``. Without
credentials in them, the libraries look where the store's own tools do: environment variables, profile files, the
identity of the machine or pod. With a user's credentials provider or a credential file, which only Hadoop's connectors
understand, Hadoop reaches the store; likewise with any other setting of encryption, identity, access or the way to the
store that has no translation, and on Azure's hosts outside its public cloud. Settings of speed are ignored.

Credentials are in ``Settings.options``, which ``repr`` leaves out. They are never written to a checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "abfs": "azure",
    "abfss": "azure",
}
"""The kinds of object stores, by the schemes of Spark's URLs."""

_STATIC_PROVIDERS = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
_OWN_PROVIDERS = (
    "EnvironmentVariableCredentialsProvider",
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "ContainerCredentialsProvider",
    "DefaultCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
    "WebIdentityTokenCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
)
_RETRIES = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3), "base": 2},
}
"""Temporary errors are retried; a store that is down is reported within some 20 seconds, not minutes."""

_S3_OF_HADOOP = (
    "accesspoint.arn",
    "acl.default",
    "aws.credentials.provider.mapping",
    "custom.signers",
    "delegation.token.binding",
    "encryption.context",
    "proxy.host",
    "security.credential.provider.path",
)
_S3_SWITCHES_OF_HADOOP = ("access.grants.enabled", "endpoint.fips", "http.signer.enabled", "requester.pays.enabled")
_GOOGLE_OF_HADOOP = (
    "auth.access.token.provider",
    "auth.access.token.provider.impl",
    "auth.client.id",
    "auth.impersonation.service.account",
    "auth.service.account.keyfile",
    "auth.service.account.private.key",
    "encryption.algorithm",
    "encryption.key",
    "encryption.key.hash",
    "proxy.address",
    "storage.root.url",
)
_AZURE_OF_HADOOP = (
    "fs.azure.account.keyprovider",
    "fs.azure.account.oauth2.msi.authority",
    "fs.azure.account.oauth2.msi.endpoint",
    "fs.azure.client-provided-encryption-key",
    "fs.azure.encryption.context.provider.type",
    "fs.azure.encryption.encoded.client-provided-key",
    "fs.azure.encryption.encoded.client-provided-key-sha",
    "fs.azure.sas.token.provider.type",
)
"""Settings that ``obstore`` can't take over: with one of them, or a switch that is true, Hadoop reaches the store."""

_ENCRYPTIONS = {"AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}
"""The encryption by S3 itself, by S3A's names; those with a client's key are Hadoop's."""

_GOOGLE_TYPES = frozenset({"COMPUTE_ENGINE", "APPLICATION_DEFAULT", "SERVICE_ACCOUNT_JSON_KEYFILE"})
_ANONYMOUS = "AnonymousAWSCredentialsProvider"
_LOGIN_HOST = "login.microsoftonline.com"
_AZURE_HOST = re.compile(r"[a-z0-9]+\.(?:dfs|blob)\.core\.windows\.net")
_AMAZON = re.compile(r"^(?:https?://)?s3(?:[.-][a-z]{2}(?:-[a-z]+){1,2}-\d+)?\.amazonaws\.com/?$")
"""Amazon's endpoints of the form s3.amazonaws.com or s3.<region>.amazonaws.com; ``obstore`` has them."""

_REGION = re.compile(r"[.-]((?:[a-z]{2}|eusc)(?:-[a-z]+){1,2}-\d+)(?:\.vpce)?\.amazonaws\.(?:com|eu)\b")
"""The region in any of Amazon's endpoints, such as s3.dualstack.eu-west-1.amazonaws.com or those of China."""

_OTHER_DOMAINS = re.compile(r"cn-|eusc-|[a-z]+-iso")
"""Amazon's regions whose endpoints do not end in amazonaws.com."""

_CREDENTIAL_FILES = "hadoop.security.credential.provider.path"


@dataclass(frozen=True)
class Settings:
    """A path in a bucket or container, with the options to reach it; ``kind`` is ``"s3"``, ``"gs"`` or ``"azure"``.

    The options are those of ``obstore``'s client; they may hold credentials.
    """

    kind: str
    bucket: str
    prefix: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def settings_of(root: str, setting: Callable[[str], str | None]) -> Settings | None:
    """Return the settings for a root's object store; None if it is not on one, or only Hadoop can reach the store.

    ``setting`` returns Hadoop's setting of a name, such as ``fs.s3a.access.key``, or None.

    >>> settings_of("s3a://lake/trades", {"fs.s3a.path.style.access": "true"}.get).bucket
    'lake'
    """
    # Hadoop takes a path literally: it does not decode escapes, and ? and # have no meaning.
    scheme, _, rest = root.partition("://")
    place, _, path = rest.partition("/")
    kind = SCHEMES.get(scheme)
    if kind is None or not place or setting(_CREDENTIAL_FILES):
        return None
    prefix = path.strip("/")
    if kind == "azure":
        container, _, host = place.partition("@")
        options = _azure(host, setting)
        return None if options is None else Settings(kind, container, prefix, options)
    options = _s3(place, setting) if kind == "s3" else _google(setting)
    return None if options is None else Settings(kind, place, prefix, options)


def client_of(settings: Settings) -> Any:
    """Return the client of ``obstore`` for the settings; raise ``BaseError`` for an invalid option."""
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415 - queries on local files do not load it

    kinds = {"s3": S3Store, "gs": GCSStore, "azure": AzureStore}
    # The container's or bucket's name is the first argument of each.
    client: Any = kinds[settings.kind]
    return client(settings.bucket, prefix=settings.prefix or None, retry_config=_RETRIES, **settings.options)


def _s3(bucket: str, setting: Callable[[str], str | None]) -> dict[str, Any] | None:
    def of(*names: str) -> str | None:
        places = (f"fs.s3a.bucket.{bucket}", "fs.s3a")
        return next((value for place in places for name in names if (value := setting(f"{place}.{name}"))), None)

    if any(map(of, _S3_OF_HADOOP)) or any((of(name) or "").lower() == "true" for name in _S3_SWITCHES_OF_HADOOP):
        return None
    options: dict[str, Any] = {}
    for part in (_s3_credentials(of), _s3_encryption(of), _s3_endpoint(bucket, of)):
        if part is None:
            return None
        options |= part
    return options


def _s3_credentials(of: Callable[..., str | None]) -> dict[str, Any] | None:
    providers = [each.strip() for each in (of("aws.credentials.provider") or "").split(",") if each.strip()]
    classes = {each.rpartition(".")[2] for each in providers}
    if classes - {_ANONYMOUS, *_STATIC_PROVIDERS, *_OWN_PROVIDERS}:
        return None
    key, secret, token = of("access.key"), of("secret.key"), of("session.token")
    if key and secret and (not classes or classes & set(_STATIC_PROVIDERS)):
        return {"access_key_id": key, "secret_access_key": secret} | ({"session_token": token} if token else {})
    return {"skip_signature": True} if classes == {_ANONYMOUS} else {}


def _s3_encryption(of: Callable[..., str | None]) -> dict[str, Any] | None:
    algorithm = of("encryption.algorithm", "server-side-encryption-algorithm")
    if algorithm is None:
        return {}
    if algorithm not in _ENCRYPTIONS:
        return None
    key = None if algorithm == "AES256" else of("encryption.key", "server-side-encryption.key")
    return {"aws_server_side_encryption": _ENCRYPTIONS[algorithm]} | ({"aws_sse_kms_key_id": key} if key else {})


def _s3_endpoint(bucket: str, of: Callable[..., str | None]) -> dict[str, Any] | None:
    endpoint = of("endpoint") or ""
    in_endpoint = _REGION.search(endpoint)
    region = of("endpoint.region") or (in_endpoint and in_endpoint[1])
    if not endpoint or _AMAZON.search(endpoint):
        is_elsewhere = region is not None and _OTHER_DOMAINS.match(region) is not None
        return None if is_elsewhere else {"region": region} if region else {}
    if "s3-accelerate" in endpoint and not region:
        return None
    is_plain = (of("connection.ssl.enabled") or "true").lower() == "false"
    url = endpoint if "://" in endpoint else f"{'http' if is_plain else 'https'}://{endpoint}"
    options: dict[str, Any] = {"endpoint": url, "region": region or "us-east-1"}
    if url.startswith("http://"):
        options["client_options"] = {"allow_http": True}
    if (of("path.style.access") or "false").lower() != "true":
        scheme, _, host = url.partition("://")
        options |= {"endpoint": f"{scheme}://{bucket}.{host}", "virtual_hosted_style_request": True}
    return options


def _google(setting: Callable[[str], str | None]) -> dict[str, Any] | None:
    def of(name: str) -> str | None:
        return setting(f"fs.gs.{name}") or setting(f"google.cloud.{name}")

    if any(map(of, _GOOGLE_OF_HADOOP)) or (of("auth.type") or "COMPUTE_ENGINE").upper() not in _GOOGLE_TYPES:
        return None
    if (of("auth.null.enable") or "").lower() == "true" or (of("requester.pays.mode") or "DISABLED") != "DISABLED":
        return None
    file = of("auth.service.account.json.keyfile")
    return {"service_account": file} if file else {}


def _azure(host: str, setting: Callable[[str], str | None]) -> dict[str, Any] | None:
    def of(name: str) -> str | None:
        return setting(f"{name}.{host}") or setting(name)

    if _AZURE_HOST.fullmatch(host) is None or any(map(of, _AZURE_OF_HADOOP)):
        return None
    kind = (of("fs.azure.account.auth.type") or "SharedKey").lower()
    options: dict[str, Any] = {"account_name": host.partition(".")[0]}
    key = of("fs.azure.account.key")
    if kind == "sharedkey":
        return options | ({"account_key": key} if key else {})
    if kind == "sas":
        token = of("fs.azure.sas.fixed.token")
        return options | {"sas_key": token} if token else None
    identity = _azure_identity(of) if kind == "oauth" else None
    return None if identity is None else options | {name: value for name, value in identity.items() if value}


def _azure_identity(of: Callable[[str], str | None]) -> dict[str, str | None] | None:
    provider = (of("fs.azure.account.oauth.provider.type") or "").rpartition(".")[2]
    identity = {"client_id": of("fs.azure.account.oauth2.client.id")}
    if provider == "MsiTokenProvider":
        return identity
    if provider == "WorkloadIdentityTokenProvider":
        tenant, file = of("fs.azure.account.oauth2.msi.tenant"), of("fs.azure.account.oauth2.token.file")
        return identity | {"tenant_id": tenant, "federated_token_file": file}
    # The endpoint is https://login.microsoftonline.com/<tenant>/oauth2/token.
    endpoint = urlsplit(of("fs.azure.account.oauth2.client.endpoint") or "")
    if provider != "ClientCredsTokenProvider" or endpoint.hostname != _LOGIN_HOST:
        return None
    tenant = endpoint.path.strip("/").partition("/")[0]
    identity |= {"client_secret": of("fs.azure.account.oauth2.client.secret"), "tenant_id": tenant}
    return identity if all(identity.values()) else None
