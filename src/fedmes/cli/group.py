"""Commands under one name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperGroup

from fedmes.errors import unknown

if TYPE_CHECKING:
    import click


class Group(TyperGroup):
    """One that says which command was meant as the package says it of any other name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        completing = ctx.resilient_parsing
        if not completing and self.get_command(ctx, name) is None and not name.startswith("-"):
            raise unknown("command", name, self.list_commands(ctx))
        return super().resolve_command(ctx, args)
