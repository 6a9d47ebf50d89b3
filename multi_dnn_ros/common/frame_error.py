"""The error for an unusable image, in its own module so that image decoding does not import PyTorch."""


class FrameError(ValueError):
    """The image of a frame cannot be used; the message says why."""
