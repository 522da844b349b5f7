"""Commands that are imported when they are called: help and completion of their names import none of them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def lazy_group(package: str, names: Sequence[str]) -> type[TyperGroup]:
    """Return the class of a group of commands, for `typer.Typer(cls=...)`.

    Args:
        package: where each command has a module of its own, with a function of the same name, or, as a package, an
            `app` of more commands.
        names: of the commands, in the order of the help.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands = {name: TyperCommand(name) for name in names}  # which a mistyped name is compared with

        def list_commands(self, ctx: Any) -> list[str]:
            return [*names]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """What help shows: a name, and the first paragraph of the docstring, which is read from the source."""
            return TyperCommand(cmd_name, help=read_docstring(package, cmd_name)) if cmd_name in names else None

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, command, others = super().resolve_command(ctx, args)
            return name, command and import_command(package, command.name or ""), others

    return LazyGroup


def read_docstring(package: str, name: str) -> str:
    """Return that of the command's function, or of the package of its commands, without importing it."""
    function, spec = name.replace("-", "_"), find_spec(f"{package}.{name.replace('-', '_')}")
    if spec is None or spec.origin is None:
        return ""
    module = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return ast.get_docstring(functions[0] if functions else module) or ""


def import_command(package: str, name: str) -> Any:
    module = importlib.import_module(f"{package}.{name.replace('-', '_')}")
    if hasattr(module, "app"):
        return typer.main.get_command(module.app)
    alone = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    alone.command(name)(getattr(module, name.replace("-", "_")))
    return typer.main.get_command(alone)
