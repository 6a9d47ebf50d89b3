"""A spot as a message."""

from __future__ import annotations

from geometry_msgs.msg import Point, PointStamped
from std_msgs.msg import Header

from toy_extension.kind import Spot


def spot_message(spot: Spot, header: Header) -> PointStamped:
    return PointStamped(header=header, point=Point(x=spot.u, y=spot.v, z=spot.score))
