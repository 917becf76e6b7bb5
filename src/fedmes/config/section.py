"""What an option is: a field with a description, the role it plays and, for some, a flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(strict=True, gt=0, le=10**9)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]

# What an option changes.
Role = Literal["data", "federation", "training", "method", "evaluation", "engine", "output"]


class Section(BaseModel):
    """A group of options: `optim.lr` is the field `lr` of the section `optim`."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        allow_inf_nan=False,
        defer_build=True,  # `fedmes --help` reads descriptions and validates nothing
    )
    role: ClassVar[Role] = "training"
    # the field that a plain value stands for: `model = "mlp"` means `model.name = "mlp"`
    plain: ClassVar[str | None] = None
    # former names of options and of their values, as older files and commands have them
    renamed: ClassVar[Mapping[str, str]] = {}
    renamed_values: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, content: Any) -> Any:
        if isinstance(content, Mapping):
            return cls.current(content)
        return content

    @classmethod
    def current(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """The content of the section under today's names."""
        found = {cls.renamed.get(key, key): value for key, value in content.items()}
        for key, values in cls.renamed_values.items():
            if isinstance(found.get(key), str):
                found[key] = values.get(found[key], found[key])
        return found


def option(
    default: Any,
    description: str,
    *,
    unset: str = "",
    flag: str = "",
    metavar: str = "",
    role: Role | None = None,
    alias: str | None = None,
) -> Any:
    """A field of a section. The first sentence of `description` is its line in `--help`.

    `unset`: what the default means, if it does not say so itself; `role`: if not the section's.
    """
    about: dict[str, Any] = {"unset": unset, "flag": flag, "metavar": metavar, "role": role}
    return Field(default, description=description, alias=alias, json_schema_extra=about)
