"""The result kind of a DNN according to its parameters, before the node is configured."""

from __future__ import annotations

from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.settings.roles import PRESETS
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind


def expected_kind(role: str, decoder: str) -> ResultKind:
    """The result kind of the role if it has defaults, otherwise of the decoder. role, decoder: parameters of the DNN.

    Raises ExtensionError: unknown decoder or kind, or decoder `auto` and a role without defaults, so that only the
    model defines the kind.
    """
    if role in PRESETS:
        return RESULT_KINDS.get(PRESETS[role].result_kind)
    if decoder == "auto":
        raise ExtensionError(
            f"decoder is 'auto' and role is '{role}', so the topics of the results are not known before configuring; "
            f"allowed here: the name of a decoder, or one of the roles {', '.join(PRESETS)}"
        )
    from multi_dnn_ros.decoders.registry import DECODERS  # imports PyTorch with the decoder

    return RESULT_KINDS.get(DECODERS.get(decoder).result_kind)
