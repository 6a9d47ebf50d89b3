# Two commands in a fresh clone: `make demo` and `make test`. Each installs what it needs into .venv first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# With the name of an extra of setup.py behind it: written when that extra is installed.
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-gpu test-rclpy lint unit install clean

demo: $(INSTALLED)-offline ## generated road -> camera process -> node process -> out/demo
	$(BIN)/multi-dnn demo --output out/demo

test: lint unit ## what CI runs

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: test-gpu
	$(BIN)/python -m pytest --durations 25 --numprocesses auto --maxprocesses 4 --dist loadfile --ignore test/gpu

test-gpu: install ## alone on the GPU, as they look at its clock; PART=engine, backends, training, benchmark or serving: one part
	$(BIN)/python -m pytest --durations 5 test/gpu/$(PART)

test-rclpy: install ## rclpy's own tests on the standalone runtime; RCLPY is a checkout of ros2/rclpy, branch jazzy
	$(BIN)/python test/standalone/rclpy_suite/run.py "$(RCLPY)" --output results/rclpy_suite.json
	$(BIN)/python test/standalone/rclpy_suite/unclaimed.py "$(RCLPY)"

install: $(INSTALLED)-test ## all extras, and what the tests need

$(INSTALLED)-offline $(INSTALLED)-test: $(INSTALLED)-%: setup.py constraints.txt
	sh tools/check_machine.sh "$(PYTHON)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) out build install log *.egg-info
