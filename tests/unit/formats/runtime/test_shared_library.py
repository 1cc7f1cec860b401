"""A library that the loader would not take is recognised before a container gets it."""

import struct
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.shared_library import a_library
from gpuledger.formats.runtime.shared_region import check_shared_library
from gpuledger.model.errors import BadInput

WHOLE = a_library(b"x" * 300, "x86_64")


def test_a_whole_library_is_taken() -> None:
    check_shared_library(WHOLE, "x86_64")
    check_shared_library(a_library(machine="aarch64"), "aarch64")


def test_a_real_library_of_this_machine_is_taken() -> None:
    """Python's own modules are shared libraries that somebody else has built."""
    import _ctypes
    import platform

    path = Path(_ctypes.__file__)
    assert path.suffix == ".so", sysconfig.get_config_var("EXT_SUFFIX")
    check_shared_library(path.read_bytes(), platform.machine())
    with pytest.raises(BadInput, match="not whole"):
        check_shared_library(path.read_bytes()[:-1], platform.machine())


def test_a_machine_that_is_not_known_here_takes_any() -> None:
    check_shared_library(WHOLE, "riscv64")


@pytest.mark.parametrize("length", [0, 1, 63, 64, 119, 120, 121, len(WHOLE) - 1])
def test_a_part_of_a_library_is_refused(length: int) -> None:
    with pytest.raises(BadInput):
        check_shared_library(WHOLE[:length], "x86_64")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"#!/bin/sh\n" * 20, "no ELF file of 64 bits"),
        (WHOLE[:4] + b"\x01" + WHOLE[5:], "no ELF file of 64 bits"),
        (a_library(machine="x86_64", kind=2), "no shared library"),
        (a_library(machine="aarch64"), "for another machine than x86_64"),
        (WHOLE[:56] + struct.pack("<H", 0) + WHOLE[58:], "not whole"),
        (WHOLE[:56] + struct.pack("<H", 9) + WHOLE[58:], "not whole"),
    ],
)
def test_something_else_is_refused_and_said(data: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        check_shared_library(data, "x86_64")


@given(st.binary(max_size=400), st.integers(0, 400))
def test_whatever_the_bytes_are_the_check_ends_with_an_answer(tail: bytes, kept: int) -> None:
    data = WHOLE[:kept] + tail
    try:
        check_shared_library(data, "x86_64")
    except BadInput:
        return
    assert data.startswith(b"\x7fELF")
