"""Help in sections: what people ask for stands apart from what a cluster runs."""

from __future__ import annotations

import click

SECTIONS = {
    "Look, as kubectl gpuledger": ("top", "get", "explain", "history", "cordon", "uncordon"),
    "The ledger and its words": ("doctor", "audit", "migrate", "inspect", "simulate"),
    "Run it, set it up": (),
}
"""Title -> commands, in this order; the last one has all that the others lack."""


class SectionedGroup(click.Group):
    """A group of commands whose help has sections."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, section by section."""
        named = {name for names in SECTIONS.values() for name in names}
        rest = [name for name in self.list_commands(ctx) if name not in named]
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                room = formatter.width - width - 6
                rows = [(name, self.commands[name].get_short_help_str(room)) for name in names or rest]
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows])
