"""Names of devices."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

DEVICE = r"auto|cpu|cuda(:\d+)?|mps"
SEVERAL_DEVICES = r"(cpu|cuda:\d+)(,(cpu|cuda:\d+))+"


def _known(value: str) -> str:
    if re.fullmatch(f"{DEVICE}|{SEVERAL_DEVICES}", value) is None:
        raise ValueError("must be auto, cpu, cuda, cuda:N or mps; or cuda:0,cuda:1,...")
    return value


Device = Annotated[str, AfterValidator(_known)]
