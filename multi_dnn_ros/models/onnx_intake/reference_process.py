"""A child process that runs an ONNX file in ONNX Runtime: python -m ... FOLDER.

FOLDER holds model.onnx and inputs.npz (one entry for each input); outputs.npz is written there. A crash of a native
library, or unbounded memory use, ends only this process.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np

#: Address space of the process, bytes.
_MAX_MEMORY = 24 << 30


def main(folder: Path) -> None:
    """Run the model once, on one thread, without optimizations, which would change its results."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY if hard < 0 else min(_MAX_MEMORY, hard), hard))
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    with np.load(folder / "inputs.npz") as stored:
        inputs = {name: stored[name] for name in stored.files}
    names = [value.name for value in session.get_outputs()]
    outputs = session.run(names, {value.name: inputs[value.name] for value in session.get_inputs()})
    np.savez(folder / "outputs.npz", *outputs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
