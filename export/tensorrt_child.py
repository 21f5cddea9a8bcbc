"""Program of the child process that builds a TensorRT engine; ``tensorrt.py`` starts it.

Run by path, with a job as JSON in the first argument, so that it imports nothing of zeus-trt. It writes the engine
file, and lines that begin with ``REPORT`` to stdout: ``{"step": ..., "done": 0..1}``, at the end ``{"error": ...}``, or
``{"file": [errno, reason, name]}`` for a file that cannot be read or written. What differs between TensorRT 10,
TensorRT 11 and TensorRT-RTX is in ``create_config``.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

REPORT = "zeus-trt: "
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def report(**fields: Any) -> None:
    """Sends a line to the parent."""
    print(REPORT + json.dumps(fields), flush=True)


def end_by_signal() -> None:
    """On Linux the system ends this process with the parent, also while a library keeps Python's threads waiting."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_parent() -> None:
    """Ends this process when the parent, which holds the other end of stdin, has gone."""
    sys.stdin.buffer.read()
    os._exit(1)


def import_builder(job: dict[str, Any]) -> Any:
    """The TensorRT module, under the name by which Polygraphy looks for it."""
    trt = importlib.import_module(job["module"])
    if job["backend"] == "tensorrt-rtx":
        os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"
        sys.modules.setdefault("tensorrt_rtx", trt)
    return trt


def create_config(trt: Any, job: dict[str, Any]) -> Any:
    """Polygraphy's loader of the builder's configuration."""
    from polygraphy.backend.trt import CreateConfig, Profile
    from polygraphy.backend.trt.profile import ShapeTuple

    class Ranges(Profile):
        def to_trt(self, builder: Any, network: Any) -> Any:
            for tensor in map(network.get_input, range(network.num_inputs)):
                if not len(tensor.shape) and not tensor.is_shape_tensor:  # an integer that the graph does not read
                    self[tensor.name] = ShapeTuple((), (), ())
            return super().to_trt(builder, network)

    profile = Ranges()
    for name, shapes in job["profile"].items():
        profile.add(name, **{end: tuple(shape) for end, shape in shapes.items()})
    options = job["options"]
    common = {
        "profiles": [profile],
        "builder_optimization_level": options["optimization_level"],
        "refittable": options["refittable"],
        "weight_streaming": options["weight_streaming"],
        "progress_monitor": create_monitor(trt),
    }
    if job["backend"] == "tensorrt-rtx":
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

        capabilities = [divmod(int(sm.removeprefix("sm_")), 10) for sm in job["sms"]]
        rtx = CreateConfigRTX(compute_capabilities=capabilities, **common)
        return lambda builder, network: set_tf32(trt, rtx(builder, network), options["tf32"])
    level = trt.HardwareCompatibilityLevel.AMPERE_PLUS if options["hardware_compatible"] else None
    return CreateConfig(
        tf32=options["tf32"],
        version_compatible=options["version_compatible"],
        hardware_compatibility_level=level,
        load_timing_cache=job["timing_cache"],
        **common,
    )


def set_tf32(trt: Any, config: Any, wanted: bool) -> Any:
    """TF32 is on unless it is cleared; Polygraphy does so for TensorRT, and not for TensorRT-RTX."""
    (config.set_flag if wanted else config.clear_flag)(trt.BuilderFlag.TF32)
    return config


def create_monitor(trt: Any) -> Any:
    """Reports how far the outermost phase has come, five times a second at most."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self):
            trt.IProgressMonitor.__init__(self)
            self.phases: dict[str, list] = {}  # name: parent, steps, steps done
            self.sent = 0.0

        def phase_start(self, name, parent, steps):
            self.phases[name] = [parent, max(steps, 1), 0]
            self.send(name)

        def step_complete(self, name, step):
            self.phases[name][2] = step + 1
            self.send(name)
            return True

        def phase_finish(self, name):
            self.phases.pop(name, None)

        def send(self, name):
            if time.monotonic() - self.sent > 0.2:
                self.sent = time.monotonic()
                report(step=name, done=max((self.measure(n) for n, p in self.phases.items() if not p[0]), default=0.0))

        def measure(self, name):
            _, steps, done = self.phases[name]
            inner = max((self.measure(other) for other, p in self.phases.items() if p[0] == name), default=0.0)
            return min((done + inner) / steps, 1.0)

    return Monitor()


def build(job: dict[str, Any], errors: list[str]) -> None:
    """Parses the graph, builds the engine and writes it."""
    trt = import_builder(job)
    from polygraphy.backend.trt import engine_bytes_from_network, network_from_onnx_path
    from polygraphy.logger import G_LOGGER

    # Turned into text at once: a parser's error is a view into a parser that is about to go.
    G_LOGGER.error = lambda message, *_, **__: errors.append(str(message))
    G_LOGGER.module_severity = G_LOGGER.WARNING
    flags = []
    if job["options"]["version_compatible"] or job["options"]["hardware_compatible"]:
        flags.append(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    report(step="Reading the graph", done=0.0)
    network = network_from_onnx_path(job["onnx"], flags=flags, strongly_typed=True)
    engine = engine_bytes_from_network(network, create_config(trt, job), save_timing_cache=job["timing_cache"])
    with open(job["output"], "wb") as file:
        file.write(engine)


def main() -> None:
    end_by_signal()
    threading.Thread(target=end_with_parent, daemon=True).start()
    errors: list[str] = []
    try:
        build(json.loads(sys.argv[1]), errors)
    except OSError as error:  # such as a full disk; the parent raises it again
        report(file=[error.errno, error.strerror, error.filename])
        sys.stdout.flush()
        os._exit(1)
    except Exception as error:  # TensorRT, Polygraphy and the file system each raise their own
        own = type(error).__module__.startswith("polygraphy")  # it only says that what was logged went wrong
        report(error="\n".join(errors) if errors and own else str(error) or type(error).__name__)
        sys.stdout.flush()
        os._exit(1)
    os._exit(0)  # the libraries' own teardown has been seen to crash; the file is written


if __name__ == "__main__":
    main()
