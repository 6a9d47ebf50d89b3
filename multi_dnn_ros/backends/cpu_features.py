"""The CPU's instructions that determine which precisions can be faster than float32 on this machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

#: The kernel's names in /proc/cpuinfo, on x86-64 and aarch64, for dot products of 8-bit integers ...
_INT8 = frozenset({"avx512_vnni", "avx_vnni", "asimddp"})
#: ... and of bfloat16.
_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_CPUINFO = Path("/proc/cpuinfo")


def has_int8_products() -> bool:
    """Whether the CPU multiplies 8-bit integers in one instruction (VNNI, or the dot product of ARMv8.2).

    Without it, unsigned by signed products saturate at 16 bits on x86-64 and int8 is slower than float32.
    """
    return bool(cpu_flags() & _INT8)


def has_bf16_products() -> bool:
    """Whether the CPU multiplies bfloat16 numbers in one instruction."""
    return bool(cpu_flags() & _BF16)


@cache
def cpu_flags() -> frozenset[str]:
    """The CPU's features as Linux names them; empty on other systems."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
