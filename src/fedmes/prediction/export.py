"""A client as one file that other programs run, without this package."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from fedmes.common.files import whole
from fedmes.errors import UserError, first_line
from fedmes.prediction.client import Client
from fedmes.prediction.standalone import Standalone
from fedmes.tensors import map_entries

INPUT = "samples"
OUTPUT = "probabilities"
COUNT = "count"  # of samples, any number
CHECKED = 16  # random samples that a written file is tried with
MOST_APART = 1e-4  # of a probability, beyond which a file is refused

Floats = NDArray[np.floating[Any]]


def export(client: Client, path: Path, source: int | None = None) -> float | None:
    """Write a client to a .onnx, .pt2 or .safetensors file.

    Returns how far the file's probabilities are from the client's, for random samples; None for
    .safetensors, which computes nothing.
    """
    write = WRITERS.get(path.suffix.lower())
    if write is None:
        raise UserError(f"{path}: the file's name must end in {', '.join(WRITERS)}")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}")
    samples = _random_samples(client)
    expected = client.predict(samples, source=source).probabilities
    module = client.standalone(source or 0)
    x = as_input(samples, client)
    try:
        with whole(path) as part, _quiet():
            answer = write(module, x, _about(client), part)
            apart = _apart(answer, expected, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    return apart


def _apart(answer: Floats | None, expected: Floats, path: Path) -> float | None:
    if answer is None:
        return None
    apart = float(np.abs(answer - expected).max())
    if not apart <= MOST_APART:
        raise UserError(
            f"{path}: not written, its probabilities would differ from `predict` by {apart:.1e}"
        )
    return apart


# --- kinds of files: each writes the module, reads it back and returns its answer -----------------


def _write_onnx(module: Standalone, x: Tensor, about: dict[str, str], path: Path) -> Floats:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  torch.onnx uses it
    except ImportError as error:
        raise UserError(
            f".onnx files need the extra `export` ({error}): pip install 'fedmes[export]'"
        ) from None
    graph = _graph(module, x).run_decompositions(IN_OTHERS)
    program = torch.onnx.export(
        graph, (), dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT]
    )
    assert program is not None
    program.model.metadata_props.update(about)
    for value in (*program.model.graph.inputs, *program.model.graph.outputs):
        assert value.shape is not None
        value.shape[0] = COUNT
    program.save(path, external_data=False)
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        answer: Floats = session.run([OUTPUT], {INPUT: x.numpy()})[0]
    except Exception as error:  # its own have no common class
        raise UserError(
            f"onnxruntime cannot compute this network ({first_line(error)}); "
            "a file that ends in .pt2 has it for torch"
        ) from None
    return answer


def _write_pt2(module: Standalone, x: Tensor, about: dict[str, str], path: Path) -> Floats:
    graph = _graph(module, x)
    content = io.BytesIO()  # by its name, torch would refuse a file that is not yet a .pt2
    torch.export.save(graph, content, extra_files=dict(about))
    path.write_bytes(content.getvalue())
    content.seek(0)
    answer: Tensor = torch.export.load(content).module()(x)
    return answer.numpy()


def _write_safetensors(module: Standalone, x: Tensor, about: dict[str, str], path: Path) -> None:
    save_file(map_entries(Tensor.contiguous, module.tensors()), path, about)


WRITERS: dict[str, Callable[[Standalone, Tensor, dict[str, str], Path], Floats | None]] = {
    ".onnx": _write_onnx,
    ".pt2": _write_pt2,
    ".safetensors": _write_safetensors,
}


def _distances(query: Tensor, store: Tensor, p: float = 2, mode: int | None = None) -> Tensor:
    """`torch.cdist`, by differences as in `neighbours`."""
    difference = query[:, None] - store[None]
    return (difference * difference).sum(-1).sqrt()


def _sorted(
    x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """`torch.sort`; in ONNX every sort puts the lower index first among equals."""
    values, index = torch.sort(x, dim=dim, descending=descending)
    return values, index


# operators of torch that ONNX has not, in others that it has
IN_OTHERS = {torch.ops.aten.cdist.default: _distances, torch.ops.aten.sort.stable: _sorted}


def _graph(module: Standalone, x: Tensor) -> torch.export.ExportedProgram:
    """For any number of samples."""
    count = torch.export.Dim(COUNT, min=1)
    try:
        return torch.export.export(module, (x,), dynamic_shapes=({0: count},), strict=False)
    except Exception as error:  # a custom module or method may do anything
        raise UserError(
            f"this client cannot be written as a graph ({first_line(error)}); "
            "write a .safetensors file"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns its developers of much that users can do nothing about."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


# --- what goes in, and what the file says of itself -----------------------------------------------


def _random_samples(client: Client) -> NDArray[Any]:
    """Like training samples; where these were token ids, some of those that are stored."""
    draw = np.random.RandomState(0)
    shape = (CHECKED, *client.sample_shape)
    if client.voters.x.dtype == np.int64:
        return np.resize(client.voters.x, shape)
    if client.of_pixels:
        return draw.randint(0, 256, shape).astype(np.uint8)
    found = draw.standard_normal(shape)
    if client.normalisation is not None:  # like the columns of a table
        found = found * client.normalisation.std[0] + client.normalisation.mean[0]
    return found.astype(np.float32)


def as_input(samples: NDArray[Any], client: Client) -> Tensor:
    """Samples as the exported file takes them: channels first, bytes as 0 to 1."""
    x = torch.from_numpy(samples)
    if len(client.shape) == 3:
        x = x.movedim(-1, 1).contiguous()
    if x.dtype == torch.uint8:
        x = x.to(torch.float32) / 255
    return x


def _about(client: Client) -> dict[str, str]:
    """What a reader of the file needs to know, as text by name."""
    facts = client.as_dict()
    takes = "samples as in training"
    if client.of_pixels:
        takes = "pixels between 0 and 1"
    return {
        "class_names": json.dumps(client.class_names),
        "classes_met": json.dumps(facts["classes"]),
        "input": takes,
        "shape": json.dumps(client.shape),
        "client": client.name,
        "method": facts["method"],
        "model": facts["model"],
        "stored_samples_that_vote": str(facts["memory"] * (facts["theta"] is not None)),
        "made_by": "fedmes",
    }
