"""The part of the image that a DNN sees, by its parameters."""

from __future__ import annotations

from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.view import WHOLE, View


def view_of(name: str, config: DnnConfig, decoder: DecoderSpec | None) -> View:
    """The part of the image by parameter `crop`. decoder: None if unknown; results are then not checked.

    name: the DNN or result, as below "dnn.", for messages. Raises ModelError if results cannot be placed.
    """
    if not config.crop:
        return WHOLE
    dnn = name.partition(".")[0]
    view = View((config.crop[0], config.crop[1], config.crop[2], config.crop[3]), f"parameter dnn.{dnn}.crop")
    if decoder is None:
        return view
    kind = RESULT_KINDS.get(decoder.result_kind)
    where = f"results of dnn.{name} (kind '{kind.name}', decoder {decoder.name})"
    if kind.place is None:
        raise ModelError(
            f"parameter dnn.{dnn}.crop is {config.crop}, but {where} cannot be placed in the image; allowed: []"
        )
    return view
