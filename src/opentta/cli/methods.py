"""``opentta methods``: what there is to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional

from opentta.cli.console import PLAIN, make_console, option, working
from opentta.errors import PluginError


@dataclass(frozen=True)
class Methods:
    """List the methods: what each does, what it needs, and how to cite it.

    A method that needs source data says so: call adapter.fit_source(loader) before it runs.
    """

    names: Annotated[Positional[tuple[str, ...]], option("[METHOD ...]")] = ()
    """Methods to show. Left out: all."""

    bibtex: bool = False
    """Print the BibTeX entries instead, ready to paste."""

    def run(self) -> int:
        """Print one table, or the entries."""
        from opentta import registry

        console = make_console()
        with working("loading the methods"):
            classes = [registry.method(name) for name in self.names] or _all()
        if self.bibtex:
            entries = dict.fromkeys(cls.bibtex for cls in classes if cls.bibtex)
            console.print("\n\n".join(entries), **PLAIN)
            return 0
        from rich import box
        from rich.table import Table

        table = Table(box=box.ASCII2)
        table.add_column("method", no_wrap=True)
        table.add_column("source data", no_wrap=True)
        table.add_column("what it does", overflow="fold")
        for cls in classes:
            idea = (cls.__doc__ or "").strip().splitlines()[:1]
            table.add_row(cls.name, "yes" if cls.needs_source else "-", "".join(idea))
        console.print(table)
        return 0


def _all() -> list[type[Any]]:
    """Every method that loads; a note names one of another package that does not."""
    from opentta import registry

    classes = []
    for name in registry.methods():
        try:
            classes.append(registry.method(name))
        except PluginError as error:
            make_console(stderr=True).print(f"note: left out: {error}", **PLAIN)
    return classes
