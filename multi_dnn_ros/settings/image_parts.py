"""The parameter `crop`: which part of the image a DNN sees."""

from __future__ import annotations

#: Allowed values of `crop`.
CROP_RULE = (
    "an empty list, or 4 numbers inside the image: x, y, width, height, with width and height above 0; fractions with "
    "x + width and y + height at most 1, or whole pixels"
)
#: Rounding of decimal fractions: 0.7 + 0.3 may exceed 1.
_ROUNDING = 1e-6


def checked_crop(values: list[float]) -> list[float]:
    """`values`, if they are allowed for `crop`; otherwise ValueError."""
    if not values:
        return values
    if len(values) != 4:
        raise ValueError(f"{len(values)} numbers; expected 4")
    x, y, width, height = values
    if min(x, y) < 0 or min(width, height) <= 0:
        raise ValueError("outside the image, or empty")
    if max(values) <= 1:
        if max(x + width, y + height) > 1 + _ROUNDING:
            raise ValueError("reaches beyond the image")
    elif any(not value.is_integer() for value in values):
        raise ValueError("neither fractions nor whole pixels")
    return values
