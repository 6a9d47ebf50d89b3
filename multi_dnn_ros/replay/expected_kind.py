"""Which kind of results a DNN will have, by its parameters: known before its node is configured."""

from __future__ import annotations

from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.settings.roles import PRESETS
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind


def expected_kind(role: str, decoder: str) -> ResultKind:
    """By the role, where it has defaults, else by the decoder that is named. role, decoder: the DNN's parameters.

    ExtensionError: a decoder or kind that is not known, or `auto` with a role without defaults: only the model knows.
    """
    if role in PRESETS:
        return RESULT_KINDS.get(PRESETS[role].result_kind)
    if decoder == "auto":
        raise ExtensionError(
            f"decoder is 'auto' and role is '{role}', so that the topics of the results are not known beforehand; "
            f"allowed here: a decoder by name, or one of the roles {', '.join(PRESETS)}"
        )
    from multi_dnn_ros.vision.decoders.registry import DECODERS  # imports PyTorch with the decoder

    return RESULT_KINDS.get(DECODERS.get(decoder).result_kind)
