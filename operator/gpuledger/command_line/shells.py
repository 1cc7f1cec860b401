"""Completion in shells as click makes it, but that a kind of objects, `card/`, is not taken for a whole word.

After a whole word a shell puts a space, and then the name could not be completed.
"""

from __future__ import annotations

from click.shell_completion import BashComplete, ZshComplete, add_completion_class

_BASH = "COMPREPLY+=($value)"
_ZSH = "compadd -U -V unsorted -a completions"


class OpenBash(BashComplete):
    """bash: what ends with a slash goes on."""

    source_template = BashComplete.source_template.replace(
        _BASH, f"{_BASH}; [[ $value == */ ]] && compopt -o nospace 2> /dev/null"
    )


class OpenZsh(ZshComplete):
    """zsh: the same."""

    source_template = ZshComplete.source_template.replace(
        _ZSH,
        'local -a open=("${(@M)completions:#*/}") whole=("${(@)completions:#*/}")\n'
        "        compadd -U -V unsorted -a whole\n"
        "        compadd -U -S '' -V unsorted -a open",
    )


def register() -> None:
    """Have click use these."""
    for kind in (OpenBash, OpenZsh):
        add_completion_class(kind)
