"""The error of an image that cannot be used, for who decodes images and has no need of PyTorch."""


class FrameError(ValueError):
    """The image of a frame cannot be used; the message names what is wrong with it."""
