"""What the sections of the schema share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]

#: Marks a runtime parameter, which may change at any time (``json_schema_extra=RUNTIME``). While the node is
#: configured, all others are read-only or changed by a swap (:mod:`multi_dnn_ros.settings.swappable`).
RUNTIME: JsonDict = {"runtime": True}


class Section(BaseModel):
    """Base of the sections."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)


def runtime_fields(section: type[Section]) -> tuple[str, ...]:
    """Names of the runtime parameters of a section, in the order of their definition."""
    return tuple(
        name
        for name, field in section.model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("runtime")
    )
