"""Times as the Kubernetes API writes them: RFC 3339, in UTC."""

from datetime import UTC, datetime


def time_of(seconds: float) -> str:
    """`seconds` since the epoch; Kubernetes' Time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time_of(seconds: float) -> str:
    """Kubernetes' MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
