"""Preprocessing of images that are PyTorch tensors; on a GPU by PyTorch, so that it can be captured in a CUDA graph."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.view import WHOLE, View


class TensorPreprocess:
    """(H, W, 3) uint8 RGB image on any device -> ((1, 3, height, width) float32,) on the same device.

    On the CPU the result is that of `preprocess`; on a GPU it differs by at most half a grey level, because the resize
    does not round. view: the part of the image that the network sees.
    """

    def __init__(self, preprocess: Preprocess, view: View = WHOLE) -> None:
        self._preprocess = preprocess
        self._view = view
        self._constants: dict[torch.device, list[torch.Tensor]] = {}

    def __call__(self, image: torch.Tensor) -> tuple[torch.Tensor]:
        """Raises ValueError if the image is not (H, W, 3) uint8, and if the view's window is not inside it."""
        preprocess = self._preprocess
        preprocess.check_image(image.shape, str(image.dtype))
        image = self._view.part_of(image)
        if image.device.type == "cpu":
            return (torch.from_numpy(preprocess(image.numpy())),)
        geometry = preprocess.geometry((image.shape[0], image.shape[1]))
        pixels = image.permute(2, 0, 1)[None].float()
        if (geometry.height, geometry.width) != tuple(pixels.shape[2:]):
            pixels = F.interpolate(
                pixels,
                (geometry.height, geometry.width),
                mode="bilinear",
                align_corners=False,
                antialias=preprocess.antialias,
            )
        scale, offset, padding = self._constants_on(image.device)
        pixels = pixels.flip(1) if preprocess.bgr else pixels
        values = torch.addcmul(offset, pixels.contiguous(), scale)
        if (geometry.height, geometry.width) == (preprocess.height, preprocess.width):
            return (values,)
        padded = padding.expand(1, 3, preprocess.height, preprocess.width).clone()
        rows = slice(geometry.top, geometry.top + geometry.height)
        columns = slice(geometry.left, geometry.left + geometry.width)
        padded[:, :, rows, columns] = values
        return (padded,)

    def _constants_on(self, device: torch.device) -> list[torch.Tensor]:
        if device not in self._constants:  # in the first call, before a capture
            constants = self._preprocess.constants()
            self._constants[device] = [torch.from_numpy(each).view(1, 3, 1, 1).to(device) for each in constants]
        return self._constants[device]
