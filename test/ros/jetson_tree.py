"""Files as below /sys of a Jetson Orin Nano (JetPack 6).

Names and units are those of the Jetson Linux Developer Guide and of the kernel's documentation; the values are typical.
"""

from __future__ import annotations

from pathlib import Path

JETSON = {
    "class/thermal/thermal_zone0/type": "cpu-thermal",
    "class/thermal/thermal_zone0/temp": "48062",
    "class/thermal/thermal_zone0/trip_point_0_type": "active",
    "class/thermal/thermal_zone0/trip_point_0_temp": "45000",
    "class/thermal/thermal_zone0/trip_point_1_type": "passive",
    "class/thermal/thermal_zone0/trip_point_1_temp": "99000",
    "class/thermal/thermal_zone0/trip_point_2_type": "critical",
    "class/thermal/thermal_zone0/trip_point_2_temp": "104500",
    "class/thermal/thermal_zone1/type": "gpu-thermal",
    "class/thermal/thermal_zone1/temp": "47500",
    "class/thermal/thermal_zone8/type": "tj-thermal",
    "class/thermal/thermal_zone8/temp": "48500",
    "class/hwmon/hwmon1/name": "ina3221",
    "class/hwmon/hwmon1/in1_label": "VDD_IN",
    "class/hwmon/hwmon1/in1_input": "5000",
    "class/hwmon/hwmon1/curr1_input": "1200",
    "class/hwmon/hwmon1/curr1_max": "7784",
    "class/hwmon/hwmon1/in2_label": "VDD_CPU_GPU_CV",
    "class/hwmon/hwmon1/in2_input": "5000",
    "class/hwmon/hwmon1/curr2_input": "400",
    "class/hwmon/hwmon1/in3_label": "VDD_SOC",
    "class/hwmon/hwmon1/in3_input": "5000",
    "class/hwmon/hwmon1/curr3_input": "300",
    "class/hwmon/hwmon1/in7_label": "sum of shunt voltages",
}


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Write the files below `root`; returns it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root
