"""The server of real sites, which never sees their data."""

from __future__ import annotations

from pathlib import Path

from flwr.serverapp import Grid

from fedmes.config.options import Config
from fedmes.engines.flower.engine import FlowerEngine
from fedmes.errors import UserError
from fedmes.experiment.journal import keeping
from fedmes.experiment.made_from import refuse, stale
from fedmes.experiment.prepare import prepare, sites_blueprint
from fedmes.experiment.recorder import Listener, Origin
from fedmes.experiment.runner import as_stored, execute
from fedmes.experiment.train import Training, train, working_in
from fedmes.results import client_dir, run_dir
from fedmes.results.run_dir import Result
from fedmes.tensors import put

# a run of real sites cannot be repeated: they have learned from it
ANOTHER = "begin another one, with another out and another federation.name"


def serve(
    grid: Grid, config: Config, directory: Path, on_progress: Listener | None = None
) -> Result:
    """Run until no site has tasks left to learn; an interrupted run is resumed."""
    config = config.with_({"engine.name": "flower", "checkpoint.every": "round"})
    config = as_stored(config, directory)
    if len(config.seeds) > 1:
        raise UserError("seeds: real sites learn once; name one seed")
    if not config.federation.sites:  # a trial: every site holds a share of a benchmark
        return execute(prepare(config), directory, on_progress, resume=True, grid=grid)
    known = sites_blueprint(config)
    config = known.config
    with working_in(directory, config):
        refuse(directory, stale(directory, known.made_from, config), ANOTHER)
        run_dir.claim(directory, config)
        with keeping(directory, config) as journal:
            engine = FlowerEngine(known.method, known.initial, config, grid)
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
            if not recorder.accuracy:
                raise UserError(
                    "; ".join(["no site has finished a task in this run", *engine.notes])
                )
            folder = directory / f"seed{config.seeds[0]}"
            folder.mkdir(exist_ok=True)
            client_dir.save_model(folder / "initial.safetensors", put("w", known.initial[0]))
            client_dir.save_model(folder / "global.safetensors", engine.server_state(0))
            origin = Origin(made_from=known.made_from)
            result = recorder.result(known.method.net.parameter_count, engine.notes, origin)
            result.sites_left_out = engine.sites_left_out
            result.write(directory)
    return result
