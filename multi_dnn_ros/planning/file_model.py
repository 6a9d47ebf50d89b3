"""Base class for the content of files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FileModel(BaseModel):
    """Immutable; rejects unknown fields and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
