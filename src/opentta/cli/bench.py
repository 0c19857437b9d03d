"""``opentta bench``: run the cells of a preset, print the table, write the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from opentta.cli.console import PLAIN, Names, Numbers, Paths, make_console, option, working
from opentta.cli.running import SOME_FAILED, Running, command_line
from opentta.errors import ConfigError, StateError

if TYPE_CHECKING:
    from opentta.adapter.base import Adapter
    from opentta.bench.plan.cells import Cell
    from opentta.bench.plan.preset import Preset
    from opentta.bench.store.results import Store


@dataclass(frozen=True)
class Bench(Running):
    """Run a benchmark: every cell of a preset that the store does not hold yet, then the table.

    Without arguments: the embedded benchmark, which needs no data, no network and no GPU. With
    `--known FOLDER --unknown FOLDER --model NAME --weights FILE`: your own images and your own
    model, see docs/your-images.md.
    A preset is a name (see the list at the end of `opentta bench --dry-run`, or docs/presets.md)
    or a TOML file. Interrupt it whenever you like: the same command goes on where it stopped.
    The exit status is 0 when every cell finished, 1 when some failed (the table names them), 2
    when the arguments make no sense.
    """

    preset: Annotated[Positional[str], option("[PRESET]")] = "mini"
    """Name of a preset such as table1, or a TOML file."""

    known: Annotated[Path | None, option("FOLDER")] = None
    """Your own images of known classes: a folder per class, or images without labels."""

    unknown: Annotated[Paths, option("FOLDER [FOLDER ...]")] = ()
    """Your own images of no known class; each folder is scored apart."""

    classes: Annotated[Path | None, option("FILE")] = None
    """CSV `folder,class` below a line of headings, where folders are not named like the model's
    classes; a class is a name or an index."""

    answers: Annotated[Literal["all", "folders"] | None, option("{all,folders}")] = None
    """Classes that the model may answer with: all of its head, or those of the folders.
    Left out: all."""

    set_aside: Annotated[Path | None, option("FOLDER")] = None
    """Other images of known classes, from which every row learns what to reject."""

    rate: Annotated[float | None, option("SHARE")] = None
    """Share of images like the set-aside ones that may be rejected. Left out: 0.05."""

    skip_unreadable: bool = False
    """Leave out images that cannot be read, instead of stopping."""

    save_state: Annotated[Path | None, option("FILE")] = None
    """Write the adapter of the only method, as it is after the clean stream, for opentta.load."""

    full: bool = False
    """All of the embedded benchmark: mini's full grid instead of the short part."""

    methods: Annotated[Names, option("METHOD [METHOD ...]")] = ()
    """Rows to run: methods or variants of the preset, or other methods. Left out: the preset's."""

    id: Annotated[Names, option("SET [SET ...]")] = ()
    """ID sets. Left out: the preset's."""

    ood: Annotated[Names, option("SET [SET ...]")] = ()
    """OOD sets, one stream each; a+b puts both into one. Left out: the preset's."""

    corruptions: Annotated[Names, option("NAME [NAME ...]")] = ()
    """Names such as fog snow; none: clean images alone; default, or left out: the preset's."""

    severities: Annotated[Numbers, option("N [N ...]")] = ()
    """Severities from 1 to 5. Left out: the preset's."""

    seeds: Annotated[Numbers, option("N [N ...]")] = ()
    """Seeds of stream and method. Left out: the preset's, 2024 2025 2026 for the paper's."""

    shapes: Annotated[Names, option("NAME [NAME ...]")] = ()
    """Shapes of streams, by the preset's names for them. Left out: the preset's."""

    backbone: Annotated[str | None, option("NAME", "--model")] = None
    """timm's name with its tag. Left out: the preset's."""

    preprocessing: Annotated[Literal["paper", "correct"] | None, option("{paper,correct}")] = None
    """paper: for the published numbers; correct: as the checkpoint was trained.
    Left out: the preset's."""

    batch_size: Annotated[int | None, option("N")] = None
    """Images per batch. Left out: the preset's."""

    limit: Annotated[int | None, option("N")] = None
    """At most this many ID images per stream, OOD images in proportion. Left out: all."""

    set: Annotated[Names, option("METHOD.FIELD=VALUE [...]")] = ()
    """Fields of a method's config, such as sar.lr=0.02. Left out: the preset's."""

    dry_run: bool = False
    """Print the cells, their number and what they would cost; compute nothing."""

    report: bool = True
    """Write the report beside the results when the cells are done."""

    def run(self) -> int:
        """Plan, run, print the table, write the report."""
        from opentta.bench.plan.presets import plan_of
        from opentta.bench.plan.weights import NOT_LOOKED_UP
        from opentta.bench.run.start import preflight
        from opentta.bench.store.plans import add_plan
        from opentta.bench.store.results import Store

        with working("planning") as tell:
            preset = self.load(tell)
            cells = self.expand(preset, download=False)
            served = self.cell_to_serve(cells)
        if self.dry_run:
            _print_cells(preset, cells, self.results, self.count_processes(cells))
            return 0
        say = make_console(stderr=True)
        engine = self.make_engine(cells)
        store = Store(self.results)
        with working("checking data and weights"):
            remarks = preflight(cells, self.where(), look=self.engine == "local")
            store.check_writable()
        if any(cell.weights.hash == NOT_LOOKED_UP for cell in cells):
            with working("fetching weights"):
                cells = self.expand(preset)  # now that all on this machine is in order
            served = self.cell_to_serve(cells)
        plan = plan_of(preset, cells, command_line())
        add_plan(store.path, plan)
        for note in (*plan.notes, *remarks):
            say.print(f"note: {note}", **PLAIN)
        if served is not None and self.save_state is not None:
            self.serve(served, store, self.save_state)
        tally = self.run_all(cells, store, engine)
        if served is not None:  # just now, and so found in the store
            tally = replace(tally, done=tally.done + 1, skipped=tally.skipped - 1)
        say.print(
            f"{tally.done:,} computed, {tally.skipped:,} stored before, {tally.failed:,} failed; "
            f"results in {self.results}",
            **PLAIN,
        )
        show_results(self.results, preset.name, report=self.report)
        return SOME_FAILED if tally.failed else 0

    def load(self, tell: Callable[[str], None]) -> Preset:
        """The preset; folders of one's own are examined, and ``tell`` hears how far it has come."""
        from opentta.bench.plan.own import BASE
        from opentta.bench.plan.presets import load_preset

        own: dict[str, Any] = {
            "known": self.known,
            "unknown": self.unknown,
            "classes": self.classes,
            "answers": self.answers,
            "set_aside": self.set_aside,
            "rate": self.rate,
            "skip_unreadable": self.skip_unreadable,
        }
        own = {name: _plain(value) for name, value in own.items() if value not in (None, (), False)}
        if self.full and self.preset != "mini":
            raise ConfigError(
                f"--full is for the embedded benchmark, mini; {self.preset} is always run in full"
            )
        if own and self.preset == "mini":
            if self.known is None:
                option = "--" + next(iter(own)).replace("_", "-")
                raise ConfigError(f"{option} goes with --known FOLDER; name the known images, too")
            name = BASE
        else:
            name = "mini-full" if self.full else self.preset
        return load_preset(
            name,
            data=own,
            model=self.backbone,
            weights=self.weights,
            progress=lambda name, done, total: tell(f"looking at {name}: {done:,} of {total:,}"),
        )

    def expand(self, preset: Preset, *, download: bool = True) -> list[Cell]:
        """The cells of a preset as the arguments change them; see ``expand`` for download."""
        from opentta.bench.plan.expand import expand

        return expand(
            preset,
            methods=self.methods or None,
            id=self.id or None,
            ood=self.ood or None,
            corruptions=_corruptions(self.corruptions),
            severities=self.severities or None,
            seeds=self.seeds or None,
            shapes=self.shapes or None,
            backbone=self.backbone,
            weights=self.weights,
            preprocessing=self.preprocessing,
            batch_size=self.batch_size,
            device=self.device_type(),
            precision=self.precision,
            threads=self.threads,
            limit=self.limit,
            fields=parse_fields(self.set),
            download=download,
        )

    def cell_to_serve(self, cells: Sequence[Cell]) -> Cell | None:
        """The cell whose adapter ``--save-state`` writes: the clean stream's, of the only row."""
        from opentta.bench.store.places import CLEAN

        if self.save_state is None:
            return None
        rows = list(dict.fromkeys(cell.place.row for cell in cells))
        if len(rows) > 1:
            raise ConfigError(
                f"--save-state: expected one method, whose adapter is saved, got {len(rows)}: "
                f"{', '.join(rows)}; add --methods {rows[-1]}"
            )
        clean = [cell for cell in cells if cell.place.corruption == CLEAN]
        if not clean:
            raise ConfigError(
                "--save-state: expected a clean stream, as the adapter that is saved is the one "
                "that saw the images as they are; add clean to --corruptions, or leave them out"
            )
        folder = self.save_state.absolute().parent
        if self.save_state.is_dir() or not folder.is_dir():
            what = f"{self.save_state} is one" if folder.is_dir() else f"there is no {folder}"
            raise ConfigError(
                f"--save-state: expected the name of a file in a folder that exists, but {what}; "
                "such as adapter.safetensors"
            )
        return clean[0]

    def serve(self, cell: Cell, store: Store, path: Path) -> None:
        """Run a cell here, store it, and save its adapter to ``path``."""
        from opentta.adapter.files import save
        from opentta.bench.run.progress import Display
        from opentta.bench.run.runner import run_cell

        say = make_console(stderr=True)
        adapters: list[Adapter] = []
        with Display([cell], console=say) as display:
            outcome = run_cell(cell, self.where(), display, serve=adapters.append)
            if cell.hash not in store.hashes():
                store.append(outcome.record, outcome.samples, outcome.extras)
            display.finished(outcome)
        if not outcome.record.ok:
            raise StateError(f"--save-state: {path} is not written: {outcome.record.reason}")
        save(adapters[0], path)
        say.print(f"adapter after {cell.title} saved: opentta.load({str(path)!r}, model)", **PLAIN)


def show_results(results: Path, preset: str, *, report: bool) -> None:
    """The table of one preset on stdout; with ``report`` also the files, and where they are."""
    from opentta.report.study.study import load_study
    from opentta.report.tables.table import build_table
    from opentta.report.tables.terminal import print_table
    from opentta.report.write import write_report

    console, say = make_console(), make_console(stderr=True)
    with working("reading the results"):
        study = load_study(results)
        table = build_table(study.section(preset))
    print_table(table, console)
    if report:
        with working("writing the report") as tell:
            files = write_report(study, progress=lambda name: tell(f"writing {name}"))
        page = next(path for path in files if path.suffix == ".html")
        say.print(f"report: {page} (and {len(files) - 1} files beside it)", **PLAIN)


def _print_cells(preset: Preset, cells: Sequence[Cell], results: Path, processes: int) -> None:
    """What a run would do: a line per cell, then the sum and what it rests on."""
    from opentta.bench.plan.estimate import estimate
    from opentta.bench.plan.presets import plan_of, presets
    from opentta.bench.plan.weights import NOT_LOOKED_UP
    from opentta.bench.run.progress import duration
    from opentta.bench.store.places import CLEAN
    from opentta.bench.store.results import Store

    console = make_console()
    store = Store(results)
    records = store.read() if store.filled else []
    records = [record for record in records if store.is_complete(record)]
    stored = {record.hash for record in records}
    for cell in cells:
        mark = "stored" if cell.hash in stored else "to run"
        console.print(f"{cell.hash[:8]}  {mark}  {cell.title}", **PLAIN)
    total = estimate(cells, records)
    console.print(f"\n{preset.name}: {preset.title}", **PLAIN)
    for note in plan_of(preset, cells, "").notes:
        console.print(f"note: {note}", **PLAIN)
    corruptions = {cell.place.corruption for cell in cells} - {CLEAN}
    sizes = (
        counted(len({c.place.row for c in cells}), "row"),
        counted(len(corruptions), "corruption"),
        counted(len({c.seed for c in cells}), "seed"),
    )
    console.print(
        f"{total.cells:,} cells ({', '.join(sizes)}), {total.stored:,} of them stored; "
        f"{total.images:,} images in {total.batches:,} batches",
        **PLAIN,
    )
    each = total.seconds / processes
    many = f"{processes} processes" if processes > 1 else "one process"
    console.print(f"about {duration(each)} with {many}, decoding not counted", **PLAIN)
    for row, cost in total.rows.items():
        console.print(f"  {row}: {cost.cells:,} cells, {duration(cost.seconds)}", **PLAIN)
    published = ["sets have the sizes that their publishers state"]
    assumed = [*(published if preset.data is None else []), *total.assumptions]
    if any(cell.weights.hash == NOT_LOOKED_UP for cell in cells):
        assumed.append("weights that are not on this disk: the hashes above are not the real ones")
    for assumption in assumed:
        console.print(f"  assumed: {assumption}", **PLAIN)
    console.print(f"presets: {', '.join(presets())}", **PLAIN)


def _plain(value: Any) -> Any:
    """A path as text, also in a list."""
    if isinstance(value, tuple):
        return [str(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _corruptions(names: Sequence[str]) -> Sequence[str] | None:
    """What was typed behind --corruptions as names of corruptions."""
    words: dict[tuple[str, ...], Sequence[str] | None] = {
        (): None,
        ("default",): None,
        ("none",): ("clean",),
    }
    return words.get(tuple(names), names)


def counted(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parse_fields(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``METHOD.FIELD=VALUE`` texts as method -> field -> value; values are written as in TOML.

    Example:
        >>> parse_fields(["sar.lr=0.02", "ladder_affine.affine=off"])
        {'sar': {'lr': 0.02}, 'ladder_affine': {'affine': 'off'}}
    """
    from opentta.bench.tune import parse_value

    out: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        method, dot, field = name.partition(".")
        if not (equals and dot and method and field and written):
            raise ConfigError(
                f"--set: expected METHOD.FIELD=VALUE, such as sar.lr=0.02; got {text!r}"
            )
        out.setdefault(method, {})[field] = parse_value(written)
    return out
