"""One extension of each registry: the brightest position of an image."""
