"""What the sections of the schema share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]

#: Marks of a parameter, for example ``json_schema_extra=RUNTIME``. RUNTIME: it may change at any time. FIXED: it is a
#: parameter of a DNN that is read-only while the node is configured, because subscriptions, publishers or the division
#: among devices depend on it. A parameter of a DNN without either mark is changed by a swap
#: (:mod:`multi_dnn_ros.settings.parameter_fields`).
RUNTIME: JsonDict = {"runtime": True}
FIXED: JsonDict = {"fixed": True}
#: The value is a folder that must exist; see also :func:`file_with`.
FOLDER: JsonDict = {"folder": True}


def file_with(*suffixes: str) -> JsonDict:
    """Marks a parameter whose value, if it ends with one of these suffixes, is a file that must exist."""
    return {"file_suffixes": list(suffixes)}


class Section(BaseModel):
    """Base of the sections."""

    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, str_strip_whitespace=True, use_attribute_docstrings=True
    )


def mark(section: type[Section], name: str, key: str) -> Any:
    """A mark of a field of a section, such as "runtime"; None: the field does not have it, or does not exist."""
    field = section.model_fields.get(name)
    return field.json_schema_extra.get(key) if field and isinstance(field.json_schema_extra, dict) else None


def runtime_fields(section: type[Section]) -> tuple[str, ...]:
    """Names of the runtime parameters of a section, in the order of their definition."""
    return tuple(name for name in section.model_fields if mark(section, name, "runtime"))
