"""A real Triton server: that of the package nvidia-pytriton, which has the Python backend and no other."""

import contextlib
import importlib.util
import os
import queue
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np

TYPES = {"float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64", "object": "BYTES"}


def find_reason():
    """The reason why no server runs with this Python; empty if one does."""
    missing = [name for name in ("pytriton", "tritonclient", "grpc") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{missing[0]} is missing: pip install nvidia-pytriton"
    if not _find_stub().is_file():
        return f"nvidia-pytriton has no Python backend for {sys.version_info.major}.{sys.version_info.minor}"
    return f"its Python backend needs numpy<2, and here is {np.__version__}" if np.__version__ >= "2" else ""


def _find_home():
    return Path(importlib.util.find_spec("pytriton").submodule_search_locations[0]) / "tritonserver"


def _find_stub():
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return _find_home() / "python_backend_stubs" / version / "triton_python_backend_stub"


def _find_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def serve(repository, folder):
    """Runs a server on a repository, with its log in ``folder``; yields a gRPC client."""
    import tritonclient.grpc as grpc

    backend = folder / "backends" / "python"
    shutil.copytree(_find_home() / "backends" / "python", backend)
    shutil.copy(_find_stub(), backend)
    program = shutil.copy(_find_home() / "bin" / "tritonserver", folder / "tritonserver")
    for file in (Path(program), backend / _find_stub().name):
        file.chmod(0o755)
    libraries = (sysconfig.get_config_var("LIBDIR"), str(_find_home().parents[1] / "nvidia_pytriton.libs"))
    path = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the stub takes the first python3's packages
    )
    environment = {**os.environ, "PATH": path, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    ports = _find_ports(2)
    options = [f"--{kind}-port={port}" for kind, port in zip(("http", "grpc"), ports, strict=True)]
    options += [f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc")]
    command = [program, f"--model-repository={repository}", f"--backend-directory={backend.parent}", *options]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([*command, "--allow-metrics=false"], env=environment, stdout=log, stderr=log)
        try:
            client = grpc.InferenceServerClient(f"127.0.0.1:{ports[1]}")
            _wait(server, client, folder / "log")
            yield client
        finally:
            server.terminate()
            server.wait(60)


def _wait(server, client, log):
    for _ in range(1200):
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(Exception):  # refused until it listens
            if client.is_server_ready():
                return
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def ask(client, requests):
    """Sends all requests at once; for each its responses: arrays by name, or the text of an error."""
    import tritonclient.grpc as grpc

    answers, found = queue.Queue(), {key: [] for key in requests}
    client.start_stream(lambda result, error: answers.put((result, error)))
    for key, arrays in requests.items():
        tensors = []
        for name, array in arrays.items():
            tensors.append(grpc.InferInput(name, array.shape, TYPES[str(array.dtype)]))
            tensors[-1].set_data_from_numpy(array)
        client.async_stream_infer("sampler", tensors, request_id=key, enable_empty_final_response=True)
    for _ in requests:
        is_last = False
        while not is_last:
            result, error = answers.get(timeout=120)
            assert error is None or "[request id: " not in str(error), error
            if error is not None:
                found.setdefault("errors", []).append(error.message())
                break
            response = result.get_response()
            names = [output.name for output in response.outputs]
            found[response.id].append({name: result.as_numpy(name) for name in names})
            is_last = response.parameters["triton_final_response"].bool_param
    client.stop_stream()
    return found


def count(client):
    """Calls that both denoisers got, and executions that they became."""
    stats = [client.get_inference_statistics(name).model_stats[0] for name in ("denoiser", "quantized")]
    return sum(one.inference_stats.success.count for one in stats), sum(one.execution_count for one in stats)
