"""Several accurate DNNs at once on one small GPU, as one ROS 2 node.

Packages from the bottom to the top; each imports only those above it in this list (test/package/test_layout.py)::

    common, settings                 errors and files; every parameter
    vision, decoders                 images and results; raw outputs to results
    graph, models                    traced networks; where DNNs come from
    backends, engine                 how a stage runs on a device; the online scheduler
    planning, pipeline, serving      layer times; from settings to tasks; engine processes and their supervision
    compression, training, profiling the offline half
    ros                              the node
    camera, replay                   sources and recordings
    demo, benchmark, cli             what a person runs
"""

from multi_dnn_ros.common.environment import prepare_environment

__version__ = "0.1.0"

prepare_environment()  # before any library is imported
