"""How the control plane's programs are built."""

import pytest

import build_control_plane
from build_control_plane import AT_ONCE, CRANE, HELM, NODE_PROGRAMS, PROGRAMS, PROMTOOL


@pytest.fixture(autouse=True)
def _no_own_settings_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOGC", raising=False)
    monkeypatch.delenv("GOMEMLIMIT", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def with_memory(monkeypatch: pytest.MonkeyPatch, mib: int) -> dict[str, str]:
    monkeypatch.setattr(build_control_plane, "_available_memory_mib", lambda: mib)
    return build_control_plane._compiler_memory()


def test_with_much_memory_the_compiler_collects_only_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_memory(monkeypatch, 16 * 1024) == {"GOGC": "off", "GOMEMLIMIT": "3072MiB"}


def test_the_limits_of_all_compilers_together_leave_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_mib = int(with_memory(monkeypatch, 20_000)["GOMEMLIMIT"].removesuffix("MiB"))
    assert limit_mib * 2 * AT_ONCE <= 15_000


@pytest.mark.parametrize("mib", [0, 2048, 4096])
def test_with_little_memory_or_where_it_is_unknown_the_collector_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, mib: int
) -> None:
    assert with_memory(monkeypatch, mib) == {}


def test_what_a_person_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOGC", "50")
    assert with_memory(monkeypatch, 64 * 1024) == {}


def test_the_memory_of_this_machine_is_known() -> None:
    assert build_control_plane._available_memory_mib() > 0


def test_each_program_has_an_output_of_its_own_in_its_module() -> None:
    programs = (*PROGRAMS, *NODE_PROGRAMS, HELM, PROMTOOL, CRANE)
    assert len({(program.module, program.output) for program in programs}) == len(programs)
    assert {program.name for program in programs if program.output != program.name} == {"etcd"}  # go says: server
