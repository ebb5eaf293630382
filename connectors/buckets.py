"""Buckets of object stores: their address, the access to them, and their client."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from headrace.pipeline.config.sections import BucketAccess
from headrace.pipeline.errors import SettingsError, UserError


@dataclass(frozen=True)
class Bucket:
    """The address of a bucket and the access to it. Picklable: tasks open it themselves."""

    url: str
    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)

    def open(self) -> Any:
        """Return the client of this process. Raise SettingsError without obstore."""
        return open_bucket(self)


def find_bucket(url: str, access: BucketAccess) -> Bucket:
    """Return the bucket at an address. `access` is that of buckets with Amazon's interface."""
    if not url.startswith("s3"):
        return Bucket(url)
    secret = access.secret_access_key.get_secret_value()
    return Bucket(url, access.endpoint, access.region, access.access_key_id, secret)


@lru_cache(maxsize=8)
def open_bucket(bucket: Bucket, retry_config: Any = None) -> Any:
    """Return the client of a bucket, which repeats requests for three minutes.

    What `bucket` leaves empty is that of the provider's own variables and roles. Raise SettingsError without
    the package obstore, and UserError for an address that is incomplete.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        msg = f"`{bucket.url}` needs the package obstore"
        raise SettingsError(msg, hint="pip install 'headrace[object-store]'") from None
    names = ("endpoint", "region", "access_key_id", "secret_access_key")
    options: Any = {name: value for name in names if (value := getattr(bucket, name))}
    client_options: Any = {"allow_http": bucket.endpoint.startswith("http://")}
    try:
        return from_url(bucket.url, config=options, client_options=client_options, retry_config=retry_config)
    except BaseError as error:
        msg = f"`{bucket.url}` cannot be opened: {first_line(error)}"
        raise UserError(msg) from None


def first_line(error: BaseException) -> str:
    """Return the message of a client, without the description of its parts."""
    line = str(error).strip().split("\n", maxsplit=1)[0]
    return line.removesuffix(': <?xml version="1.0" encoding="UTF-8"?>')[:300]
