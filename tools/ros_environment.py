"""Complete a virtual environment into which the extra ``[ros]`` was installed; run it with that environment's Python.

PyPI has compiled wheels of ROS 2, but their libraries are only found through ``LD_LIBRARY_PATH``, and there is no wheel
of ``vision_msgs``. This script

1. sets the run path of the wheels' libraries to the folder that they are in, so that no variable is needed,
2. generates and compiles the messages of ``tools/vision_msgs``, those of ``vision_msgs`` that this package uses,
3. writes ``ros_environment.pth``, which sets ``AMENT_PREFIX_PATH`` and ``ROS_DISTRO`` at each start of the interpreter
   and turns off the restart by which the wheels set ``LD_LIBRARY_PATH``.

It takes a few seconds and changes nothing when it is run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

PREFIX = Path(sys.prefix)
LIBRARIES = PREFIX / "lib"
SITE = Path(sysconfig.get_path("platlib"))
PACKAGE = "vision_msgs"
DEFINITIONS = sorted((Path(__file__).resolve().parent / PACKAGE).glob("*.msg"))
#: Packages whose messages those of ``vision_msgs`` contain.
DEPENDENCIES = ("builtin_interfaces", "std_msgs", "geometry_msgs")
#: Those that rmw_fastrtps_cpp asks for.
TYPE_SUPPORTS = ("rosidl_typesupport_fastrtps_c", "rosidl_typesupport_introspection_c")
STAMP = SITE / PACKAGE / "definitions.sha256"
PTH = SITE / "ros_environment.pth"
#: Read before ``ros_wheels_bootstrapper.pth``, because its name comes first in the alphabet.
PTH_LINE = (
    "import os, sys; os.environ.setdefault('AMENT_PREFIX_PATH', sys.prefix); "
    "os.environ.setdefault('ROS_DISTRO', '{distribution}'); "
    "os.environ.setdefault('_ROS_WHEELS_BOOTSTRAP_COMPLETE', '1')\n"
)


def main() -> int:
    os.environ["AMENT_PREFIX_PATH"] = sys.prefix
    if sys.prefix == sys.base_prefix:
        return fail(f"{sys.executable} is not in a virtual environment; run this script with .venv/bin/python")
    try:
        metadata.version("ros-rclpy")
    except metadata.PackageNotFoundError:
        return fail(f'{PREFIX} has no ROS 2 wheels; install them first: pip install ".[ros]"')
    stamp = fingerprint()
    if STAMP.is_file() and STAMP.read_text() == stamp and PTH.is_file():
        return 0
    missing = missing_tools()
    if missing:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return fail(
            f"compiling {PACKAGE} needs {missing}; on Debian and Ubuntu: sudo apt install gcc g++ python{version}-dev"
        )
    set_run_paths()
    try:
        with tempfile.TemporaryDirectory() as folder:
            install_messages(Path(folder))
    except subprocess.CalledProcessError as error:
        return fail(f"compiling {PACKAGE} failed: {error.cmd[-1]}: {error.stderr}")
    PTH.write_text(PTH_LINE.format(distribution=distribution()))
    STAMP.write_text(stamp)
    return 0


def fail(text: str) -> int:
    print(f"ros_environment.py: {text}", file=sys.stderr)
    return 1


def distribution() -> str:
    """The name of the distribution of ROS 2 whose wheels are installed."""
    names = (re.fullmatch(r"ros-([a-z]+)-rclpy", each.metadata["Name"]) for each in metadata.distributions())
    return next(name[1] for name in names if name is not None)


def fingerprint() -> str:
    """SHA-256 of what the result depends on: definitions, this file, versions of Python, NumPy and ROS 2."""
    versions = [sys.version, *(metadata.version(name) for name in ("numpy", "ros-rosidl-generator-py", "ros-rclpy"))]
    content = b"".join(file.read_bytes() for file in (*DEFINITIONS, Path(__file__)))
    return hashlib.sha256("\n".join(versions).encode() + content).hexdigest()


def missing_tools() -> str:
    """What the machine lacks to compile an extension module; empty: nothing."""
    missing = [name for name in ("gcc", "g++") if shutil.which(name) is None]
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        missing.append("Python.h")
    return " and ".join(missing)


def set_run_paths() -> None:
    """Set the run path of the wheels' libraries: ``lib`` and the folders of libraries that came with the wheels."""
    folders = [LIBRARIES, *sorted(SITE.glob("ros_*.libs"))]
    ros_packages = {Path(each).name for each in (PREFIX / "share/ament_index/resource_index/packages").iterdir()}
    files = [file for folder in folders for file in folder.glob("*.so*") if not file.is_symlink()]
    files += [file for name in sorted(ros_packages) for file in (SITE / name).glob("*.so")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda file: _set_run_path(file, folders), files))


def _set_run_path(file: Path, folders: Iterable[Path]) -> None:
    relative = [os.path.relpath(folder, file.parent) for folder in folders]
    path = ":".join("$ORIGIN" if each == "." else f"$ORIGIN/{each}" for each in relative)
    patchelf = str(PREFIX / "bin/patchelf")
    if run([patchelf, "--print-rpath", str(file)]).strip() != path:  # a node that runs may have loaded the file
        run([patchelf, "--force-rpath", "--set-rpath", path, str(file)])


def install_messages(build: Path) -> None:
    """Generate, compile and install the messages: C structures, type support for Fast DDS, and the Python package."""
    generated = build / "generated"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints two lines per message
        hashes = generate_sources(build / PACKAGE, generated)
    libraries = compile_libraries(generated)
    installed = SITE / PACKAGE
    shutil.rmtree(installed, ignore_errors=True)
    shutil.copytree(generated / "py" / PACKAGE, installed, ignore=shutil.ignore_patterns("*.c"))
    (installed / "__init__.py").touch()
    for library in libraries:
        shutil.copy(library, installed if library.name.startswith(f"{PACKAGE}_s__") else LIBRARIES)
    share = PREFIX / "share"
    shutil.copytree(build / PACKAGE / "msg", share / PACKAGE / "msg", dirs_exist_ok=True)
    (share / "ament_index/resource_index/packages" / PACKAGE).touch()
    print(f"{PACKAGE}: {len(hashes)} messages compiled")


def generate_sources(definitions: Path, generated: Path) -> list[Path]:
    """Write the sources below the folder `generated`, by the generators of the wheels; the files with the type hashes.

    The generators are called one by one: `rosidl generate` fails because each of the wheels is registered twice.
    """
    from rosidl_adapter.msg import convert_msg_to_idl
    from rosidl_generator_c.cli import GenerateC
    from rosidl_generator_py.cli import GeneratePython
    from rosidl_generator_type_description.cli import HashTypeDescription
    from rosidl_typesupport_c.cli import GenerateCTypesupport
    from rosidl_typesupport_fastrtps_c.cli import GenerateFastRTPSCTypesupport
    from rosidl_typesupport_introspection_c.cli import GenerateIntrospectionCTypesupport

    messages = definitions / "msg"
    messages.mkdir(parents=True)
    for file in DEFINITIONS:
        shutil.copy(file, messages)
        convert_msg_to_idl(definitions, PACKAGE, Path("msg", file.name), messages)
    idl = [f"{definitions}:msg/{file.stem}.idl" for file in DEFINITIONS]
    include = [str(PREFIX / "share" / name) for name in DEPENDENCIES]
    hashes: list[Path] = HashTypeDescription("hash").generate_type_hashes(PACKAGE, idl, include, definitions)
    GenerateC("c").generate(PACKAGE, idl, include, generated / "c" / PACKAGE, type_description_files=hashes)
    GeneratePython("py", typesupport_implementations=["rosidl_typesupport_c"]).generate(
        PACKAGE, idl, include, generated / "py" / PACKAGE
    )
    GenerateCTypesupport("c", typesupport_implementations=list(TYPE_SUPPORTS)).generate(
        PACKAGE, idl, include, generated / "rosidl_typesupport_c" / PACKAGE
    )
    for generator in (GenerateFastRTPSCTypesupport("fastrtps_c"), GenerateIntrospectionCTypesupport("introspection_c")):
        generator.generate(PACKAGE, idl, include, generated / f"rosidl_typesupport_{generator.name}" / PACKAGE)
    return hashes


def compile_libraries(generated: Path) -> list[Path]:
    """Compile the generated sources; the libraries, in the order in which each needs those before it."""
    import numpy as np

    include = PREFIX / "include"
    headers = [include, *(folder for folder in include.iterdir() if folder.is_dir())]
    headers += [*generated.iterdir(), Path(sysconfig.get_path("include")), Path(np.get_include())]
    extension = f"{PACKAGE}_s__rosidl_typesupport_c{sysconfig.get_config_var('EXT_SUFFIX')}"
    folder_by_library = {
        f"lib{PACKAGE}__rosidl_generator_c.so": "c",
        **{f"lib{PACKAGE}__{name}.so": name for name in (*TYPE_SUPPORTS, "rosidl_typesupport_c")},
        extension: "py",
    }
    flags = ["-fPIC", "-O1", f"-DROS_PACKAGE_NAME={PACKAGE}", *(f"-I{folder}" for folder in headers)]

    def compile_source(source: Path) -> str:
        target = str(source.with_suffix(".o"))
        compiler = ["g++", "-std=c++17"] if source.suffix == ".cpp" else ["gcc", "-std=gnu11"]
        run([*compiler, *flags, "-o", target, "-c", str(source)])
        return target

    # Only what the messages contain; the libraries of the other packages are found by way of these.
    packages = ("rosidl_generator_c", "rosidl_generator_py", *TYPE_SUPPORTS)
    needed = ["rosidl_runtime_c", "rosidl_typesupport_c", *TYPE_SUPPORTS, "fastcdr"]
    needed += [f"{name}__{kind}" for name in DEPENDENCIES for kind in packages]
    libraries: list[Path] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, folder in folder_by_library.items():
            objects = list(pool.map(compile_source, sorted(generated.glob(f"{folder}/**/*.c*"))))
            installed = SITE / PACKAGE if name == extension else LIBRARIES
            run_path = f"$ORIGIN/{os.path.relpath(LIBRARIES, installed)}"
            link = [f"-L{LIBRARIES}", "-Wl,--as-needed", f"-Wl,-rpath-link,{LIBRARIES}", f"-Wl,-soname,{name}"]
            link += [f"-Wl,--disable-new-dtags,-rpath,{run_path}", *(f"-l{each}" for each in needed)]
            run(["g++", "-shared", *objects, *map(str, libraries), *link, "-o", str(generated / name)])
            libraries.append(generated / name)
    return libraries


def run(command: Sequence[str]) -> str:
    """Run a command; its standard output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
