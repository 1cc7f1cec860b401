"""The file between the program that runs MPS' daemons and the agent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.runtime.mps import DaemonStatus, FaultKind, MpsFault, MpsStatus, Phase
from gpuledger.model.errors import BadInput

STATUS = MpsStatus(
    pod_uid="uid-mps",
    daemons=(
        DaemonStatus(
            name="GPU-0", cards=("GPU-0",), pid=7, phase=Phase.RUNNING, servers=(8,), faults={FaultKind.FATAL: 2}
        ),
    ),
    faults=(MpsFault(number=2, at_s=1.5, daemon="GPU-0", kind=FaultKind.FATAL, sentence="it is so"),),
)


def test_what_is_written_is_read() -> None:
    assert MpsStatus.read(STATUS.text()) == STATUS
    assert '"podUID":"uid-mps"' in STATUS.text()


def test_what_a_newer_program_adds_is_no_reason_to_read_nothing() -> None:
    assert MpsStatus.read(STATUS.text()[:-1] + ',"more":1}') == STATUS


def refusal(text: str) -> str:
    try:
        MpsStatus.read(text)
    except BadInput as error:
        return str(error)
    return ""


@given(st.text() | st.text(alphabet='{}[]":,daemonsfaults01'))
def test_any_other_text_is_refused_in_our_own_words(text: str) -> None:
    said = refusal(text)
    assert said.startswith("status.json: ") or (not said and text.strip().startswith("{"))


@pytest.mark.parametrize("field", ['"pid":-1', '"phase":"well"', '"faults":{"other":1}', '"faults":{"fatal":-1}'])
def test_values_that_can_not_be_are_refused(field: str) -> None:
    with pytest.raises(BadInput):
        MpsStatus.read(f'{{"daemons":[{{"name":"GPU-0",{field}}}]}}')
