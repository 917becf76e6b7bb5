"""The device and the precision that a run computes with."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedmes.config.device import DEVICE
from fedmes.config.options import Config
from fedmes.errors import UserError


def pick_device(name: str) -> torch.device:
    """The device of this name, or the first of several. One GPU of several becomes the one that
    `cuda` means."""
    name = devices_of(name)[0]
    if re.fullmatch(DEVICE, name) is None:
        raise UserError(f"device: must be auto, cpu, cuda, cuda:N or mps, not '{name}'")
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise UserError("device: there is no Apple GPU (MPS) on this machine; use --device cpu")
        return torch.device("mps")
    there = torch.cuda.is_available()
    if name.startswith("cuda") and not there:
        raise UserError("device: there is no CUDA device on this machine; use --device cpu")
    if name == "cpu" or not there:
        return torch.device("cpu")
    _, _, number = name.partition(":")
    if number:
        count = torch.cuda.device_count()
        if int(number) >= count:
            raise UserError(f"device: {name}, but this machine has cuda:0 to cuda:{count - 1}")
        torch.cuda.set_device(int(number))
    return torch.device("cuda")


def devices_of(names: str) -> list[str]:
    """The devices over which a run is shared out; most runs have one."""
    return names.split(",")


def resolved_devices(asked: str, engine: str, own: bool) -> str:
    """The devices of a run under names that will mean the same ones when it is resumed. `cuda` is
    all GPUs of the machine, unless the run has `own` code or data, which other processes might not
    find."""
    device = pick_device(asked).type
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    if len(devices_of(asked)) > 1:
        return asked
    if gpus < 2 or engine == "flower":
        return device
    if asked == "cuda" and engine == "stacked" and not own:
        return ",".join(f"cuda:{number}" for number in range(gpus))
    return f"cuda:{torch.cuda.current_device()}"


def is_one_gpu(name: str) -> bool:
    return re.fullmatch(r"cuda(:\d+)?", name) is not None


def refuse_on_mps(config: Config, exact_sums: bool, robust: str) -> None:
    """An Apple GPU has no float64, and the stacked engine keeps its books in that. `exact_sums`:
    does the method? `robust`: the server's rule."""
    if config.device != "mps":
        return
    if config.engine.precision != "float32":
        raise UserError("device mps: computes in float32 only; leave engine.precision out")
    if config.engine.name == "stacked":
        raise UserError("device mps: the stacked engine needs float64; use --engine loop")
    if exact_sums:
        raise UserError(
            f"device mps: method {config.method_name} sums in float64; use --device cpu"
        )
    if robust != "none":
        raise UserError(f"device mps: server.robust={robust} compares in float64; use --device cpu")


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"{platform.machine()} GPU (MPS)"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def dtype_of(config: Config) -> torch.dtype:
    """The type of weights and losses; layers may compute in bf16."""
    if config.engine.precision == "float64":
        return torch.float64
    return torch.float32


@contextmanager
def numerics(config: Config) -> Iterator[None]:
    """Threads and the precision of products during a run; both are restored afterwards."""
    threads = torch.get_num_threads()
    products = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn
    convolutions = cudnn.allow_tf32
    timed = cudnn.benchmark
    repeatable = cudnn.deterministic
    if config.engine.name in ("loop", "flower") and config.model.name in ("linear", "mlp"):
        # Small products gain nothing from more threads, which on a busy machine mostly wait.
        torch.set_num_threads(1)
    cudnn.allow_tf32 = config.engine.precision == "tf32"
    torch.set_float32_matmul_precision("high" if cudnn.allow_tf32 else "highest")
    # Where bits are given up for speed, convolutions are timed and the fastest kernels taken;
    # elsewhere only those that round the same way each time, so that a resumed run is the same run.
    cudnn.benchmark = config.engine.precision in ("tf32", "bf16")
    cudnn.deterministic = not cudnn.benchmark
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(products)
        cudnn.allow_tf32 = convolutions
        cudnn.benchmark = timed
        cudnn.deterministic = repeatable


@contextmanager
def untimed_convolutions() -> Iterator[None]:
    """While sizes change from batch to batch: to time kernels for each would take longer than a
    worse one does."""
    timed = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = timed
