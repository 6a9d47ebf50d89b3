"""Makes the message packages importable before the test modules ask for them."""

import multi_dnn_ros.ros  # noqa: F401
