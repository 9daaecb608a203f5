"""Cost model of a planned run: workers, their speed, and prices."""

from typing import NamedTuple

DEFAULT_RATE = 100 << 20  # bytes a second that a worker reads or writes
DEFAULT_LATENCY = 0.05  # seconds before a request's first byte


class Prices(NamedTuple):
    """Prices in any one currency."""

    worker_hour: float = 0.0
    gigabyte_read: float = 0.0
    gigabyte_written: float = 0.0
    thousand_requests: float = 0.0


class CostModel(NamedTuple):
    """Model of a planned run. rate: bytes per second that a worker reads or writes. latency: seconds per request."""

    workers: int = 1
    rate: int = DEFAULT_RATE
    latency: float = DEFAULT_LATENCY
    prices: Prices = Prices()
