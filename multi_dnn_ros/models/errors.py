"""Errors of models and their files."""


class ModelError(ValueError):
    """A DNN cannot be loaded or used; the message names the file or parameter, its value and what is allowed."""


class ExportError(ValueError):
    """A network cannot be exported to ONNX; the message names the operation or the exporter's reason."""
