"""Names of devices in parameters and options; without pydantic, so that the help of commands needs no schema."""

from __future__ import annotations

#: Syntax of a device; :func:`multi_dnn_ros.planning.batch_units.parse_unit` reads all of them but auto.
DEVICE = r"^(auto|cpu(:[1-9][0-9]{0,3})?|cuda(:[0-9]{1,3})?)$"
#: What is allowed, in words.
DEVICE_FORMS = "auto, cpu, cpu:<threads>, cuda, cuda:<number>"
