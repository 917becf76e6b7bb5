"""The server of real sites, which never sees their data.

A federation lives on: months bring classes that nobody listed, sites join and leave. Nothing
begins from scratch, and nothing grows by a way of its own:

* **Classes.** A site whose data has classes that are not in the configuration it was sent does
  not do what it was asked for, and names them (answers.py). The server collects these names from
  all sites that are there, adds them to `federation.classes` in the order of sites and of each
  site's tasks, and stores the configuration before any site hears of it. Then a new engine for
  more classes takes the place of the old one and continues from the last checkpoint. There, as in
  `fedmes extend`, every stored tensor is put into a fresh one of the new size (`tensors.grown`):
  heads, masks, optimizer state, statistics, tables of results. A site does the same with its own
  state when it hears of the new configuration. New rows of a head are those that a network made
  for so many classes begins with, and so the same everywhere (config/growth.py). A site that
  meets new classes in the middle of a run misses one round.
* **Sites.** The run is repeated with another list of `federation.sites`. A new site gets the next
  number and starts from the federation's present model; one that is no longer listed keeps its
  number and results, is not waited for, and is refused if it comes.

What cannot grow is said before anything has changed; the sites that asked for it are left out.
"""

from __future__ import annotations

from pathlib import Path

from flwr.serverapp import Grid

from fedmes import config as configuration
from fedmes.config import growth
from fedmes.config.options import Config
from fedmes.engines.flower.engine import FlowerEngine, any_context
from fedmes.engines.flower.roster import log
from fedmes.errors import UserError
from fedmes.experiment.journal import Journal, keeping
from fedmes.experiment.made_from import refuse, stale
from fedmes.experiment.prepare import Blueprint, prepare, sites_blueprint
from fedmes.experiment.recorder import Listener, Origin, Recorder
from fedmes.experiment.runner import as_stored, execute
from fedmes.experiment.train import Training, train, working_in
from fedmes.results import client_dir, run_dir
from fedmes.results.run_dir import Result
from fedmes.tensors import Tensors, grown, put

# a run of real sites cannot be repeated: they have learned from it
ANOTHER = "begin another one, with another out and another federation.name"
MOST_CLASSES = 10_000  # that sites may bring


def serve(
    grid: Grid, config: Config, directory: Path, on_progress: Listener | None = None
) -> Result:
    """Run until no site has tasks left to learn; an interrupted run is resumed."""
    config = config.with_({"engine.name": "flower", "checkpoint.every": "round"})
    if len(config.seeds) > 1:
        raise UserError("seeds: real sites learn once; name one seed")
    if not config.federation.sites:  # a trial: every site holds a share of a benchmark
        config = as_stored(config, directory)
        return execute(prepare(config), directory, on_progress, resume=True, grid=grid)
    known = continued(config, directory)
    with working_in(directory, known.config):
        refuse(directory, stale(directory, known.made_from, known.config), ANOTHER)
        run_dir.claim(directory, known.config)
        with keeping(directory, known.config) as journal:
            return _served(grid, known, directory, journal, on_progress)


def _served(
    grid: Grid, known: Blueprint, directory: Path, journal: Journal, on_progress: Listener | None
) -> Result:
    """With one engine after the other, each for the classes known by then."""
    before: FlowerEngine | None = None
    closed = ""
    while True:
        config = known.config
        engine = FlowerEngine(known.method, known.initial, config, grid, closed, before)
        training = Training(
            config,
            directory,
            None,
            journal,
            on_progress,
            resume=True,
            made_from=known.made_from,
            more=engine.anything_to_do,
        )
        recorder = train(engine, training)
        if not engine.proposed:
            return _written(known, engine, recorder, directory)
        before = engine
        try:
            known = _with_classes(known, engine.new_classes, directory)
            run_dir.claim(directory, known.config)
        except UserError as error:
            closed = str(error)


def _written(known: Blueprint, engine: FlowerEngine, recorder: Recorder, directory: Path) -> Result:
    if not recorder.accuracy:
        raise UserError("; ".join(["no site has finished a task in this run", *engine.notes]))
    folder = directory / f"seed{known.config.seeds[0]}"
    folder.mkdir(exist_ok=True)
    client_dir.save_model(folder / "initial.safetensors", put("w", known.initial[0]))
    client_dir.save_model(folder / "global.safetensors", engine.server_state(0))
    origin = Origin(made_from=known.made_from)
    result = recorder.result(known.method.net.parameter_count, engine.notes, origin)
    result.sites_left_out = engine.sites_left_out
    result.write(directory)
    return result


def continued(config: Config, directory: Path) -> Blueprint:
    """What is asked for, as a continuation of the run in the directory, if there is one."""
    stored = run_dir.stored_config(directory)
    if stored is None:
        return sites_blueprint(config)
    before = configuration.stored(stored, directory)
    try:
        as_stored(growth.without_growth(config, before), directory)
    except UserError:
        if run_dir.learned(directory, before):
            raise
        return sites_blueprint(config)
    if config.federation.mean != before.federation.mean:
        log.info("federation.mean and federation.std stay as they were at the start")
    known = sites_blueprint(before)
    return _checked(known, sites_blueprint(growth.grown(known.config, config)))


def _with_classes(known: Blueprint, new: list[str], directory: Path) -> Blueprint:
    learned = run_dir.learned(directory, known.config)
    config = growth.with_classes(known.config, new, from_the_start=not learned)
    classes = config.federation.classes
    if len(classes) > MOST_CLASSES:
        raise UserError(f"{len(classes)} classes; {MOST_CLASSES} are the most")
    larger = _checked(known, sites_blueprint(config))
    log.info("new classes: %s; there are %d now", ", ".join(new), len(classes))
    return larger


def _checked(known: Blueprint, larger: Blueprint) -> Blueprint:
    """The larger one, if what was learned so far can grow to its size."""
    joining = len(larger.config.federation.sites) > len(known.config.federation.sites)
    if joining and not larger.method.sites_may_join:
        raise UserError(f"method {known.config.method_name}: no site can join later; {ANOTHER}")
    for part in ("server", "client"):
        before = _state(known, part)
        try:
            for name, fresh in _state(larger, part).items():
                grown(before[name], fresh)
        except (KeyError, ValueError) as error:
            raise UserError(
                f"method {known.config.method_name} cannot grow: {part} state ({error})"
            ) from None
    return larger


def _state(known: Blueprint, part: str) -> Tensors:
    """Of the server or of a client, before the first round."""
    params = known.initial[0]
    if part == "server":
        return known.method.server(params)
    return known.method.init(params, any_context(known.config, params))
