"""Several accurate DNNs at once on one small GPU, as one ROS 2 node.

The rooms and the direction of their imports::

    ros -> engine -> backends        the online half
    training -> models               what runs, and how it was trained
    cli, benchmark -> everything     the command ``multi-dnn``
    standalone                       ROS 2's Python surface where no ROS 2 is installed

:mod:`multi_dnn_ros.schema` holds every parameter; :mod:`multi_dnn_ros.choices` says what device, backend and precision
mean on this machine; :mod:`multi_dnn_ros.settings_check` finds what is wrong with them before a DNN is loaded;
:mod:`multi_dnn_ros.pipeline` turns parameters into the tasks that the engine runs.
"""

__version__ = "0.1.0"
