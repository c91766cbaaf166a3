"""The check of a whole app: `assert_idempotent`, its cases, its clients and its report."""

from oncekey.testing.app_check.assertion import assert_idempotent, assert_idempotent_async
from oncekey.testing.app_check.check_report import (
    CaseResult,
    CaseStatus,
    IdempotencyReport,
    NotIdempotent,
)
from oncekey.testing.app_check.sample_request import SampleRequest

__all__ = [
    "CaseResult",
    "CaseStatus",
    "IdempotencyReport",
    "NotIdempotent",
    "SampleRequest",
    "assert_idempotent",
    "assert_idempotent_async",
]
