"""Names of precisions in parameters and options; without pydantic, so that the help of commands needs no schema."""

from __future__ import annotations

#: Values of the parameter `dnn.<dnn>.precision`; :data:`multi_dnn_ros.backends.precision.PRECISIONS` says what each is.
PRECISIONS = ("auto", "fp32", "tf32", "fp16", "bf16", "int8")
#: Values of --precision of the commands that train.
TRAINING_PRECISIONS = ("fp32", "bf16", "fp16")
