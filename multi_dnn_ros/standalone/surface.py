"""The names of rclpy in the standalone runtime: module -> name -> implementing module of this package."""

from __future__ import annotations

from typing import Final


def _names(**homes: str) -> dict[str, str]:
    return {name: home for home, names in homes.items() for name in names.split()}


_QOS: Final = _names(
    qos=(
        "DurabilityPolicy HistoryPolicy InvalidQoSProfileException LivelinessPolicy QoSPresetProfiles QoSProfile "
        "ReliabilityPolicy qos_profile_default qos_profile_parameter_events qos_profile_parameters "
        "qos_profile_sensor_data qos_profile_services_default qos_profile_system_default "
        "QoSDurabilityPolicy QoSHistoryPolicy QoSLivelinessPolicy QoSReliabilityPolicy"
    )
)

SURFACE: Final[dict[str, dict[str, str]]] = {
    "rclpy": _names(
        runtime=(
            "create_node get_global_executor get_rmw_implementation_identifier init ok shutdown spin spin_once "
            "spin_until_future_complete try_shutdown"
        ),
        context="Context get_default_context",
        parameters="Parameter",
        futures="Future",
        signals="SignalHandlerOptions",
    ),
    "rclpy.callback_groups": _names(
        callback_groups="CallbackGroup MutuallyExclusiveCallbackGroup ReentrantCallbackGroup"
    ),
    "rclpy.client": _names(services="Client"),
    "rclpy.clock": _names(
        clock="Clock ROSClock", time_values="ClockType", clock_jumps="ClockChange JumpHandle JumpThreshold TimeJump"
    ),
    "rclpy.clock_type": _names(time_values="ClockType"),
    "rclpy.constants": _names(time_values="S_TO_NS"),
    "rclpy.context": _names(context="Context"),
    "rclpy.duration": _names(time_values="Duration Infinite"),
    "rclpy.exceptions": _names(
        errors=(
            "InvalidHandle InvalidNamespaceException InvalidNodeNameException InvalidParameterException "
            "InvalidParameterTypeException InvalidParameterValueException InvalidServiceNameException "
            "InvalidTopicNameException NameValidationException NotInitializedException "
            "ParameterAlreadyDeclaredException ParameterException ParameterImmutableException "
            "ParameterNotDeclaredException ParameterUninitializedException ROSInterruptException "
            "NoTypeSupportImportedException"
        )
    ),
    "rclpy.executors": _names(
        executors=(
            "Executor ExternalShutdownException MultiThreadedExecutor ShutdownException SingleThreadedExecutor "
            "TimeoutException"
        )
    ),
    "rclpy.guard_condition": _names(entities="GuardCondition"),
    "rclpy.impl": {},
    "rclpy.impl.rcutils_logger": _names(logs="RcutilsLogger"),
    "rclpy.lifecycle": _names(
        lifecycle=(
            "LifecycleNode LifecycleNodeMixin LifecyclePublisher LifecycleState ManagedEntity Node NodeMixin "
            "SimpleManagedEntity State"
        ),
        state_machine="TransitionCallbackReturn",
    )
    | {"Publisher": "lifecycle:LifecyclePublisher"},
    "rclpy.logging": _names(
        logs=(
            "LoggingSeverity clear_config get_logger get_logger_effective_level get_logger_level "
            "get_logging_severity_from_string set_logger_level _root_logger"
        )
    ),
    "rclpy.node": _names(node="Node"),
    "rclpy.parameter": _names(parameters="Parameter parameter_value_to_python")
    | {"PARAMETER_SEPARATOR_STRING": "parameters:SEPARATOR"},
    "rclpy.publisher": _names(topics="Publisher"),
    "rclpy.qos": _QOS,
    "rclpy.serialization": _names(cdr="deserialize_message serialize_message"),
    "rclpy.service": _names(services="Service"),
    "rclpy.signals": _names(
        signals=(
            "SignalHandlerOptions get_current_signal_handlers_options install_signal_handlers uninstall_signal_handlers"
        )
    ),
    "rclpy.subscription": _names(topics="Subscription"),
    "rclpy.task": _names(futures="Future Task"),
    "rclpy.time": _names(time_values="Time"),
    "rclpy.time_source": _names(time_source="CLOCK_TOPIC USE_SIM_TIME_NAME"),
    "rclpy.type_description_service": _names(type_description="START_TYPE_DESCRIPTION_SERVICE_PARAM"),
    "rclpy.timer": _names(entities="Timer"),
    "rclpy.utilities": _names(
        runtime="get_rmw_implementation_identifier ok remove_ros_args shutdown try_shutdown",
        context="get_default_context",
    ),
}
