"""Denoisers as others export them, in ONNX's own text: the best ones for pixels that are +-MEAN, blurred by SPREAD.

For ``noisy = a clean + b noise`` such a denoiser is
``(s^2 a noisy + b^2 m tanh(m a noisy / t2)) / t2`` with ``t2 = a^2 s^2 + b^2``, at any size.
"""

import numpy as np
import onnx

MEAN, SPREAD, DATA = 0.7, 0.2, 0.5
_BETAS = np.linspace(0.0001, 0.02, 1000, dtype=np.float32)  # of diffusers' schedulers by default
SIGMAS = np.sqrt((1 - np.cumprod(1 - _BETAS)) / np.cumprod(1 - _BETAS)).astype(np.float32)

_CLEAN = """
    aa = Mul(a, a) bb = Mul(b, b) as2 = Mul(aa, s2) t2 = Add(as2, bb) an = Mul(a, noisy)
    man = Mul(m, an) fit = Div(man, t2) sign = Tanh(fit) bbm = Mul(bb, m) far = Mul(bbm, sign) near = Mul(s2, an)
    sum = Add(near, far) clean = Div(sum, t2)
"""
_VP = "root = Mul(sigma, sigma) more = Add(root, one) norm = Sqrt(more) a = Div(one, norm) b = Div(sigma, norm)"
_EPSILON = "ax = Mul(a, clean) left = Sub(noisy, ax) noise = Div(left, b)"
_SPREAD = "vv = Mul(sigma, sigma) tt = Add(vv, data2) spread = Sqrt(tt)"
_TIMES = {  # what the input of the time becomes
    "sigma": "sigma = Identity(rows)",
    "log-sigma": "sigma = Exp(rows)",
    "c_noise": "quad = Mul(rows, four) sigma = Exp(quad)",
    "index": "place = Cast<to = 7>(rows) sigma = Gather(table, place)",
    "thousandths": "sigma = Div(rows, thousand)",
}
_BODIES = {  # from ``latents`` and ``sigma`` to ``made``
    "whole": f"noisy = Identity(latents) a = Identity(one) b = Identity(sigma) {_CLEAN} made = Identity(clean)",
    "bare": f"""{_SPREAD} noisy = Mul(latents, spread) a = Identity(one) b = Identity(sigma) {_CLEAN}
        kept = Div(data2, tt) skip = Mul(kept, noisy) rest = Sub(clean, skip) grown = Mul(rest, spread)
        small = Mul(sigma, data) made = Div(grown, small)""",
    "epsilon": f"noisy = Identity(latents) {_VP} {_CLEAN} {_EPSILON} made = Identity(noise)",
    "v": f"""noisy = Identity(latents) {_VP} {_CLEAN} {_EPSILON} an2 = Mul(a, noise) bx = Mul(b, clean)
        made = Sub(an2, bx)""",
    "x0": f"noisy = Identity(latents) {_VP} {_CLEAN} made = Identity(clean)",
    "flow": f"""noisy = Identity(latents) a = Sub(one, sigma) b = Identity(sigma) {_CLEAN} gone = Sub(noisy, clean)
        made = Div(gone, b)""",
    "flow x0": f"noisy = Identity(latents) a = Sub(one, sigma) b = Identity(sigma) {_CLEAN} made = Identity(clean)",
}


def write_foreign(path, kind, time, **changes):
    """Writes a graph.

    Args:
        path: The .onnx file.
        kind: One of ``_BODIES``.
        time: One of ``_TIMES``.
        **changes: ``latents``, ``times``, ``dtype``, ``time_dtype``: axes and types; ``after``, more nodes after
            ``made``; ``outputs``; ``more``, further inputs as ``("float[n] shift", ...)``; ``opset``.
    """
    latents, times = changes.get("latents", "n,1,4,4"), changes.get("times", "n")
    dtype, time_dtype = changes.get("dtype", "float"), changes.get("time_dtype", "float")
    times = f"{time_dtype}[{times}]" if times else time_dtype
    inputs = ", ".join([f"{dtype}[{latents}] x", f"{times} t", *changes.get("more", ())])
    outputs = changes.get("outputs", f"{dtype}[{latents}] y")
    number = {"float": 1, "float16": 10}[dtype]
    text = f"""<ir_version: 8, opset_import: ["" : {changes.get("opset", 17)}]>
    agraph ({inputs}) => ({outputs}) {{
        column = Constant<value_ints = {[-1, 1, 1, 1]}>() latents = Cast<to = 1>(x) wide = Cast<to = 1>(t)
        rows = Reshape(wide, column) {_TIMES[time]} {_BODIES[kind]} {changes.get("after", "last = Identity(made)")}
        y = Cast<to = {number}>(last)
    }}"""
    model = onnx.parser.parse_model(text)
    numbers = {"one": 1, "four": 4, "thousand": 1000, "m": MEAN, "s2": SPREAD**2, "data": DATA, "data2": DATA**2}
    stored = [onnx.numpy_helper.from_array(np.float32(value), name) for name, value in numbers.items()]
    if time == "index":
        stored.append(onnx.numpy_helper.from_array(SIGMAS, "table"))
    model.graph.initializer.extend(stored)
    if changes.get("external"):
        onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    else:
        onnx.save(model, path)
    return path


def find_clean(noisy, a, b):
    """The same denoiser in numpy, float64."""
    t2 = a**2 * SPREAD**2 + b**2
    return (SPREAD**2 * a * noisy + b**2 * MEAN * np.tanh(MEAN * a * noisy / t2)) / t2
