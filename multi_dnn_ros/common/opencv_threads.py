"""OpenCV's threads in processes that convert images of several cameras."""

from __future__ import annotations


def disable_opencv_threads() -> None:
    """Make OpenCV convert images in the calling thread, in the whole process.

    By default it divides each image among as many threads as there are cores. On 32 cores this takes nine times the CPU
    time for a raw image of 1280x720, and each camera has a decoding thread anyway.
    """
    import cv2  # only here: processes without images start sooner

    cv2.setNumThreads(1)
