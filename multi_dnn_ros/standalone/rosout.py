"""A node's log messages on /rosout."""

from __future__ import annotations

import threading

from multi_dnn_ros.standalone import logs
from multi_dnn_ros.standalone.errors import InvalidHandle
from multi_dnn_ros.standalone.log_sites import LoggingSeverity
from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.time_values import Time
from multi_dnn_ros.standalone.topics import Publisher


class Rosout:
    """Publishes the messages that a logger and its children pass."""

    def __init__(self, logger_name: str, publisher: Publisher) -> None:
        self._name = logger_name
        self.publisher = publisher
        self._active = threading.local()
        self._type = message_class("rcl_interfaces/msg/Log")
        logs.add_sink(logger_name, self._publish)

    def close(self) -> None:
        """Stop publishing."""
        logs.remove_sink(self._name)

    def _publish(
        self, stamp_ns: int, severity: LoggingSeverity, name: str, text: str, file: str, function: str, line: int
    ) -> None:
        if getattr(self._active, "publishing", False):
            return  # logged while a log message is published
        self._active.publishing = True
        try:
            self.publisher.publish(
                self._type(
                    stamp=Time(nanoseconds=stamp_ns).to_msg(),
                    level=int(severity),
                    name=name,
                    msg=text,
                    file=file,
                    function=function,
                    line=line,
                )
            )
        except InvalidHandle:
            self.close()
        finally:
            self._active.publishing = False
