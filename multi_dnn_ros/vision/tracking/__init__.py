"""Tracks: which boxes of consecutive frames are the same object. Pure numpy over results; no ROS, no PyTorch."""
