"""Spark's settings of an object store, translated for libraries that reach it without the JVM.

A setting ``fs.*`` may be in Hadoop's configuration or in Spark's, where its name begins with ``spark.hadoop.``. Without
credentials in them, the libraries look where the store's own tools do: environment variables, profile files, the
identity of the machine or pod. With a user's credentials provider or a credential file, which only Hadoop's connectors
understand, Hadoop reaches the store. Other settings without a translation, such as encryption, are ignored.

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

_ANONYMOUS = "AnonymousAWSCredentialsProvider"
_AZURE_PROVIDERS = frozenset({"ClientCredsTokenProvider", "MsiTokenProvider", "WorkloadIdentityTokenProvider"})
_AMAZON = re.compile(r"^(?:https?://)?s3(?:[.-]([a-z0-9-]+))?\.amazonaws\.com/?$")
"""Amazon's endpoints of the form s3.amazonaws.com or s3.<region>.amazonaws.com, with the region."""

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
        return None if options is None or not host else Settings(kind, container, prefix, options)
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
    def of(name: str) -> str | None:
        return setting(f"fs.s3a.bucket.{bucket}.{name}") or setting(f"fs.s3a.{name}")

    options: dict[str, Any] = {}
    providers = [each.strip() for each in (of("aws.credentials.provider") or "").split(",") if each.strip()]
    classes = {each.rpartition(".")[2] for each in providers}
    if classes - {_ANONYMOUS, *_STATIC_PROVIDERS, *_OWN_PROVIDERS}:
        return None
    key, secret, token = of("access.key"), of("secret.key"), of("session.token")
    if key and secret and (not classes or classes & set(_STATIC_PROVIDERS)):
        options |= {"access_key_id": key, "secret_access_key": secret} | ({"session_token": token} if token else {})
    elif classes == {_ANONYMOUS}:
        options["skip_signature"] = True
    endpoint, region = of("endpoint"), of("endpoint.region")
    amazons = None if endpoint is None else _AMAZON.search(endpoint)
    if amazons is not None:
        endpoint, region = None, region or amazons[1]
    if endpoint:
        is_plain = (of("connection.ssl.enabled") or "true").lower() == "false"
        url = endpoint if "://" in endpoint else f"{'http' if is_plain else 'https'}://{endpoint}"
        options["endpoint"] = url
        if url.startswith("http://"):
            options["client_options"] = {"allow_http": True}
        if (of("path.style.access") or "false").lower() != "true":
            options["virtual_hosted_style_request"] = True
            scheme, _, host = url.partition("://")
            options["endpoint"] = f"{scheme}://{bucket}.{host}"
    if region or endpoint:
        options["region"] = region or "us-east-1"
    return options


def _google(setting: Callable[[str], str | None]) -> dict[str, Any] | None:
    if setting("fs.gs.auth.access.token.provider") or setting("fs.gs.auth.access.token.provider.impl"):
        return None
    file = setting("fs.gs.auth.service.account.json.keyfile") or setting(
        "google.cloud.auth.service.account.json.keyfile"
    )
    return {"service_account": file} if file else {}


def _azure(host: str, setting: Callable[[str], str | None]) -> dict[str, Any] | None:
    def of(name: str) -> str | None:
        return setting(f"{name}.{host}") or setting(name)

    kind = (of("fs.azure.account.auth.type") or "SharedKey").lower()
    options: dict[str, Any] = {"account_name": host.partition(".")[0]}
    key = of("fs.azure.account.key")
    if kind == "sharedkey":
        return options | ({"account_key": key} if key else {})
    if kind == "sas":
        token = of("fs.azure.sas.fixed.token")
        return options | {"sas_key": token} if token else None
    provider = (of("fs.azure.account.oauth.provider.type") or "").rpartition(".")[2]
    if kind != "oauth" or provider not in _AZURE_PROVIDERS:
        return None
    client, secret = of("fs.azure.account.oauth2.client.id"), of("fs.azure.account.oauth2.client.secret")
    if provider != "ClientCredsTokenProvider":
        return options | ({"client_id": client} if client else {})
    # The endpoint is https://login.microsoftonline.com/<tenant>/oauth2/token.
    tenant = urlsplit(of("fs.azure.account.oauth2.client.endpoint") or "").path.strip("/").partition("/")[0]
    if not (client and secret and tenant):
        return None
    return options | {"client_id": client, "client_secret": secret, "tenant_id": tenant}
