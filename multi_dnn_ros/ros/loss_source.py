"""What an estimate of lost images is based on."""

from __future__ import annotations

from enum import Enum


class LossSource(Enum):
    """The values are the words of the diagnostics."""

    SEQUENCE_NUMBERS = "the publisher's sequence numbers"
    EVENTS = "message-lost events"
    RATE = "rate_hz"
    GAPS = "gaps between the stamps"
    DATAGRAMS = "datagrams that the kernel dropped"
    NONE = "no data yet"
