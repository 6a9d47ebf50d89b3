"""Converters that onnx2torch lacks, or has for special cases only. Importing this package needs onnx2torch.

Each module adds its converters to onnx2torch's registry when it is imported.
"""

from __future__ import annotations

from multi_dnn_ros.models.onnx_intake.converters import (
    elementwise as elementwise,
)
from multi_dnn_ros.models.onnx_intake.converters import (
    indexing as indexing,
)
from multi_dnn_ros.models.onnx_intake.converters import (
    layers as layers,
)
from multi_dnn_ros.models.onnx_intake.converters import (
    quantization as quantization,
)
from multi_dnn_ros.models.onnx_intake.converters import (
    resize as resize,
)
from multi_dnn_ros.models.onnx_intake.converters import (
    shapes as shapes,
)
from multi_dnn_ros.models.onnx_intake.converters.later_versions import register_later_versions

register_later_versions()
