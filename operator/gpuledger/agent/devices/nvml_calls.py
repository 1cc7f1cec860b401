"""Calls of NVML, with its errors turned into ours.

Drivers and cards differ in what they can answer, and NVML says so in several ways. Where an answer can be missing,
these functions return None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpuledger.agent.devices.source import DriverGone
from gpuledger.model.errors import GpuledgerError

Handle = Any
"""A card or a MIG device, as pynvml hands it out; good until NVML is shut down."""

Answer = TypeVar("Answer")

DRIVER_IS_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)

HAS_NO_ANSWER = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""The card may work all the same: it, the driver or the account has no such thing."""


class CardError(GpuledgerError):
    """A card does not answer a question that each has an answer to."""


def need(call: Callable[..., Answer], *arguments: object) -> Answer:
    """Return the answer. Raises CardError, DriverGone."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise_if_gone(error)
        raise CardError(str(error)) from error


def ask(call: Callable[..., Answer], *arguments: object) -> Answer | None:
    """Return the answer, or None where there is no such thing. Raises CardError, DriverGone."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise_if_gone(error)
        if error.value in HAS_NO_ANSWER:
            return None
        raise CardError(str(error)) from error


def try_to_ask(call: Callable[..., Answer], *arguments: object) -> Answer | None:
    """Return the answer, or None where the card has none, for whatever reason. Raises DriverGone."""
    try:
        return ask(call, *arguments)
    except CardError:
        return None


def raise_if_gone(error: pynvml.NVMLError) -> None:
    """Raise DriverGone when the error says that no card can be talked to."""
    if error.value in DRIVER_IS_GONE:
        raise DriverGone(f"the NVIDIA driver does not respond: {error}") from error


def text(answer: str | bytes | None) -> str:
    """Return text, whichever way this version of pynvml spells it."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer or ""


def pci_address(bus_id: str | bytes) -> str:
    """Return a PCI address as Linux writes it, `0000:07:00.0`; NVML has it as `00000000:07:00.0`, in upper case."""
    domain, _, rest = text(bus_id).lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest else ""
    except ValueError:
        return ""
