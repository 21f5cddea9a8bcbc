"""Which engines may be loaded: an engine is native code, so only those built here, unless the user trusts others."""

import hmac
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_record import EngineRecord
from zeus_trt.runtime.bundle.signing_key import read_key

VARIABLE = "ZEUS_TRT_TRUST_ENGINES"
NOT_BUILT_HERE = "not built on this machine"
TRUST_ADVICE = f"or set trust_engines ({VARIABLE}=1) if you trust those who built it"

_PURPOSE = b"zeus-trt engine record\n"
_trusts = ContextVar("trusts", default=False)


@contextmanager
def trust_engines() -> Iterator[None]:
    """Within the block, engines that were built elsewhere are loaded too where nothing else is said."""
    token = _trusts.set(True)
    try:
        yield
    finally:
        _trusts.reset(token)


def check_trust(asked: bool | None) -> bool:
    """Whether engines that were built elsewhere may be loaded.

    Args:
        asked: What the caller says; by None it is ``trust_engines``, or else ``ZEUS_TRT_TRUST_ENGINES``.

    Raises:
        ZeusError: Neither a bool nor None, or the variable is neither 0 nor 1.
    """
    if asked is not None:
        if not isinstance(asked, bool):
            raise ZeusError(f"trust_engines: got {asked!r}; expected True, False or None. Change it.")
        return asked
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise ZeusError(f"{VARIABLE}: got {value!r}; expected 0 or 1. Change it.")
    return _trusts.get() or value == "1"


def sign(record: EngineRecord, key: bytes) -> EngineRecord:
    """The record with a signature over every other field: file, size and digest, and the spec that names the model."""
    return replace(record, signature=_compute(record, key))


def is_signed(record: EngineRecord, key: bytes) -> bool:
    """Whether ``sign`` made the record with this key."""
    return hmac.compare_digest(record.signature.encode("utf-8", "replace"), _compute(record, key).encode())


def find_distrust(record: EngineRecord, trust: bool) -> tuple[str, ...]:
    """Why the engine of a record may not be loaded; nothing if it may.

    Args:
        record: What came with the engine.
        trust: Engines that were built elsewhere may be loaded.

    Raises:
        ZeusError: As ``read_key``.
    """
    if trust:
        return ()
    key = read_key()
    return () if key and is_signed(record, key) else (NOT_BUILT_HERE,)


def _compute(record: EngineRecord, key: bytes) -> str:
    fields = asdict(replace(record, signature=""))
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hmac.digest(key, _PURPOSE + text.encode(), "sha256").hex()
