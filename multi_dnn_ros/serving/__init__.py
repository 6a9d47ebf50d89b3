"""Where the engine runs, as the node sees it: in processes of its own that are supervised, or in the node's process.

Nothing here imports PyTorch but :mod:`multi_dnn_ros.serving.engine_main`, which is the engine process, and
:mod:`multi_dnn_ros.serving.local_host`.
"""
