"""What a command does is read from it only where that is certain; a guess would end a pod at the wrong time."""

import math

import pytest

from gpuledger.agent.simulated import ENDLESS, Run, run_of


@pytest.mark.parametrize(
    ("words", "lasts_s"),
    [
        (["sleep", "30"], 30),
        (["/bin/sleep", "1.5"], 1.5),
        (["sleep", "1m", "1s"], 61),
        (["sleep", "2h"], 7200),
        (["sleep", "1d"], 86400),
        (["sleep", "infinity"], math.inf),
        (["tail", "-f", "/dev/null"], math.inf),
        (["true"], 0),
        (["echo", "sleep", "5"], 0),
    ],
)
def test_a_plain_command_ends_well_after_its_time(words: list[str], lasts_s: float) -> None:
    assert run_of(words) == Run(lasts_s)


@pytest.mark.parametrize(
    ("script", "run"),
    [
        ("sleep 5", Run(5)),
        ("sleep 5; sleep 2m", Run(125)),
        ("echo begins\nsleep 5\nsleep 1\n", Run(6)),
        ("echo 'a; b' && sleep 1;\n\nexit 3", Run(1, 3)),
        ("exit 3; sleep 5", Run(0, 3)),
        ("sleep 1; exit", Run(1)),
        ("false; exit", Run(0, 1)),
        ("exit 257", Run(0, 1)),
        ("false && sleep 5", Run(0, 1)),
        ("false || sleep 5", Run(5)),
        ("true || sleep 5", Run(0)),
        ("sleep infinity", ENDLESS),
    ],
)
@pytest.mark.parametrize("shell", [["sh", "-c"], ["/bin/bash", "-ec"]])
def test_a_script_of_such_commands_ends_with_what_the_last_one_said(shell: list[str], script: str, run: Run) -> None:
    assert run_of([*shell, script]) == run


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["python", "train.py"],
        ["sleep"],
        ["sleep", "$SECONDS"],
        ["exit", "1"],  # of the shell only: as a program it can't be started
        ["sh", "sleep.sh"],
        *(
            ["sh", "-c", script]
            for script in (
                "sleep 5 | cat",
                "sleep 5 &",
                "echo x > /tmp/x",
                "while true; do sleep 5; done",
                "if true; then exit 1; fi",
                "exit $?",
                "echo $(sleep 5)",
                "python train.py; sleep 5",
                "sleep 5; echo 'open",
                "sleep 5;; exit",
            )
        ),
    ],
    ids=str,
)
def test_nothing_is_guessed_of_any_other_command(words: list[str]) -> None:
    assert run_of(words) is None
