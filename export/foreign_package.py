"""A package of AOTInductor that others compiled: what the code beside its library says of its inputs."""

import json
import platform
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.foreign_engine import CompiledModel
from zeus_trt.export.foreign_model import name_axis
from zeus_trt.files import digest_file
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR
from zeus_trt.runtime.bundle.engine_record import Target
from zeus_trt.runtime.bundle.precision import FLOATS, Precision
from zeus_trt.runtime.bundle.relation import Relation
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import DTYPES, SymbolSpec, TensorSpec
from zeus_trt.runtime.engines.hardware import find_cpu, find_gpu

_LARGEST = 1 << 26  # bytes of code and metadata that are read
_TRIED = 8
_FILE = re.compile(r"(?:[^/]+/)?data/aotinductor/model/[^/]+\.(?:wrapper\.cpp|wrapper_metadata\.json)")
_CHECK = re.compile(r"static void check_input_(\d+)\([^{]*\{\n(.*?)\n\}\n", re.DOTALL)  # one for each input
_NAME = re.compile(r"ConstantHandle (\w+) = ConstantHandle\(input_handles")
_DTYPE = re.compile(r"aoti_torch_dtype_(\w+)\(\)")
_FIXED = re.compile(r"if \((\d+) != \w+_size\[(\d+)\]\)")
_LEAST = re.compile(r"if \(\w+_size\[(\d+)\] < (\d+)\)")
_LARGE = re.compile(r"if \(\w+_size\[(\d+)\] > (\d+)\)")
_STRIDE = re.compile(r"if \((\d+) != \w+_stride\[(\d+)\]\)")
_SIZES = re.compile(r"assert_size_stride\((\w+), \{(.*?)\}, \{")
_FACTOR = re.compile(r"(?:(\d+)L\*)?([a-z]+\d+)")  # a size that varies, or a multiple of one
_SPEC = re.compile(r'in_spec_ = R"\((.*?)\)";')
_CONSTANT = re.compile(r"constants_info_\[\d+\]\.(dtype = cached_torch_dtype_|data_size = )(\w+);")
_OUTPUT = re.compile(r"outputs_info_\[(\d+)\]\.name")


@dataclass(frozen=True)
class Check:
    """What a package checks of an input if it is asked to.

    Args:
        handle: Its name in the code, which ends in its number among all arguments.
        dtype: Name of a torch dtype.
        sizes: Of each axis a number, or the code's words for a size that varies; empty where it has none.
        least, most: Limits of axes that vary.
        strides: Of axes whose stride is fixed.
    """

    handle: str
    dtype: str
    sizes: tuple[int | str, ...]
    least: dict[int, int]
    most: dict[int, int]
    strides: dict[int, int]

    @property
    def number(self) -> int:
        """Its place among all arguments: weights, constants and inputs."""
        digits = re.search(r"\d+", self.handle)
        return int(digits[0]) if digits else 0

    @property
    def is_contiguous(self) -> bool:
        """Whether it is laid out as tensors are by default."""
        for axis, size in enumerate(self.sizes):
            inner = self.sizes[axis + 1 :]
            known = prod(inner) if all(isinstance(one, int) for one in inner) else None
            if size != 1 and self.strides.get(axis) != known:
                return False
        return True


def read_package(path: Path, latents: str) -> CompiledModel:
    """Reads the inputs of a package; nothing of it is run.

    An input that was passed by its name has that name; others are ``input_0``, ``input_1``, by their places.

    Args:
        path: The .pt2 file.
        latents: The name of its noisy latents.

    Raises:
        ZeusError: It does not read, is for another machine, or asks of its inputs what nothing here can pass.
    """
    try:
        code, metadata = _read_files(path)
        checks = [_read_check(body[2], code) for body in sorted(_CHECK.finditer(code), key=lambda body: int(body[1]))]
        outputs = tuple(f"output_{place}" for place in range(len({*_OUTPUT.findall(code)})))
        if len(checks) < 2 or not outputs:
            raise ValueError(f"its code has {len(checks)} inputs and {len(outputs)} outputs")
        inputs, rules = _describe(dict(zip(_name_inputs(code, checks), checks, strict=True)))
    except ZeusError:
        raise
    except Exception as error:  # zipfile, zlib and json each raise their own
        raise ZeusError(
            f"model: got {path.name}, which does not read ({say_cause(error)}); expected a package of one model as "
            "torch._inductor.aoti_compile_and_package writes it. Compile it again."
        ) from error
    device = _check_machine(path, metadata)
    processor = find_gpu() if device == "cuda" else find_cpu()
    assert processor
    return CompiledModel(
        path=path,
        inputs=inputs,
        outputs=outputs,
        sizes=_choose_sizes(inputs, rules, latents),
        rules=rules,
        kind=AOT_INDUCTOR,
        version=torch.__version__,
        stored=_find_precision(code),
        target=Target((processor.sm,), processor.name),
        device=device,
        size=path.stat().st_size,
        sha256=digest_file(path),
    )


def _read_files(path: Path) -> tuple[str, dict[str, str]]:
    """The code of the package, and its metadata."""
    with zipfile.ZipFile(path) as archive:
        files = [info for info in archive.infolist() if _FILE.fullmatch(info.filename)]
        found = {info.filename.rpartition(".")[2]: info for info in files}
        if found.keys() != {"cpp", "json"} or len(files) > 2:
            raise ValueError("it has no code and metadata of one model beside its library")
        if large := [info for info in found.values() if info.file_size > _LARGEST]:
            raise ValueError(f"{large[0].filename} is too large")
        code, metadata = archive.read(found["cpp"]).decode(), json.loads(archive.read(found["json"]))
    return code, {name: str(value) for name, value in metadata.items()}


def _read_check(body: str, code: str) -> Check:
    [handle], [dtype] = _NAME.findall(body), _DTYPE.findall(body)
    fixed = {int(axis): int(size) for size, axis in _FIXED.findall(body)}
    least = {int(axis): int(size) for axis, size in _LEAST.findall(body)}
    most = {int(axis): int(size) for axis, size in _LARGE.findall(body)}
    strides = {int(axis): int(stride) for stride, axis in _STRIDE.findall(body)}
    rank = 1 + max([-1, *fixed, *least, *most, *strides])
    text = next((text for name, text in _SIZES.findall(code) if name == handle), "")
    words = [word.strip() for word in text.split(",") if word.strip()]
    words = words if len(words) == rank else [text] * rank
    return Check(handle, dtype, tuple(fixed.get(axis, words[axis]) for axis in range(rank)), least, most, strides)


def _check_machine(path: Path, metadata: dict[str, str]) -> str:
    """The device of a package; raises ZeusError where this machine has no such device."""
    device, isa = metadata.get("AOTI_DEVICE_KEY", ""), metadata.get("AOTI_CPU_ISA", "")
    made_for = metadata.get("AOTI_PLATFORM", sys.platform), metadata.get("AOTI_MACHINE", platform.machine())
    is_here = made_for == (sys.platform, platform.machine())
    if device == "cpu" and is_here and ("AVX512" not in isa or torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return device
    if device == "cuda" and is_here and torch.cuda.is_available():
        return device
    raise ZeusError(
        f"model: got {path.name}, a package of AOTInductor for {device or 'no device'} on {' '.join(made_for)} "
        f"({isa or 'any CPU'}); expected one for a device of this machine. Import it where it runs, or compile it here."
    )


def _name_inputs(code: str, checks: list[Check]) -> list[str]:
    """By their words in the call; arguments that are constants have no check, and the first argument is a tensor."""
    names = dict(enumerate(_list_arguments(code)))
    first = checks[0].number
    return [names.get(check.number - first) or f"input_{place}" for place, check in enumerate(checks)]


def _list_arguments(code: str) -> Iterator[str]:
    """The name of each argument of the call, empty for one that is passed by its place."""
    try:
        spec = pytree.treespec_loads(_SPEC.findall(code)[0])
        flat, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(range(spec.num_leaves), spec))
    except Exception:  # classes that are not known here
        return
    for (kind, *keys), _ in flat:
        words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in keys]
        yield ".".join(words) if getattr(kind, "idx", 0) else ""


def _describe(checks: dict[str, Check]) -> tuple[tuple[TensorSpec, ...], SizeRules]:
    """The inputs and what they ask of their sizes.

    Raises:
        ZeusError: A type, a layout or a size that nothing here can pass.
    """
    axes: dict[str, str] = {}  # by the code's words
    symbols: dict[str, SymbolSpec] = {}
    inputs, relations = [], []
    known: dict[str, tuple[str, int]] = {}  # the first multiple of each size that varies
    for name, check in checks.items():
        if check.dtype not in DTYPES or not check.is_contiguous:
            raise _refuse(name, check.dtype if check.dtype not in DTYPES else "another layout than the usual")
        named: list[int | str] = []
        for place, size in enumerate(check.sizes):
            if isinstance(size, int):
                named.append(size)
                continue
            if not (factor := _FACTOR.fullmatch(size)):
                raise _refuse(name, f"an axis of {size or 'unknown'} numbers")
            axis, step, base = axes.setdefault(size, name_axis(name, place)), int(factor[1] or 1), factor[2]
            if axis not in symbols and (other := known.setdefault(base, (axis, step)))[0] != axis:
                relations.append(Relation((other[0], step, "*", axis, other[1], "*", "==")))
            symbols[axis] = _limit(symbols.get(axis, SymbolSpec(axis, (), step)), check, place)
            named.append(axis)
        inputs.append(TensorSpec(name, check.dtype, tuple(named)))
    rules = SizeRules({spec.name: spec.axes for spec in inputs}, {}, tuple(symbols.values()), tuple(relations))
    return tuple(inputs), rules


def _limit(symbol: SymbolSpec, check: Check, place: int) -> SymbolSpec:
    """With the limits of an axis too. Torch writes 2 for 1: it compiles one code for both."""
    step, most = symbol.multiple_of, [*filter(None, [symbol.maximum, check.most.get(place)])]
    least = check.least.get(place, 1)
    least = step if least <= 2 * step else least
    return SymbolSpec(symbol.name, (), step, min(most) if most else None, minimum=max(symbol.minimum, least))


def _choose_sizes(inputs: tuple[TensorSpec, ...], rules: SizeRules, latents: str) -> dict[str, int]:
    """A size within its limits for each axis that the latents do not have."""
    own = {axis for spec in inputs if spec.name == latents for axis in spec.axes}
    sizes = {}
    for symbol in rules.symbols:
        if symbol.name not in own:
            size = max(symbol.minimum, min(_TRIED, symbol.maximum or _TRIED))
            sizes[symbol.name] = max(1, size // symbol.multiple_of) * symbol.multiple_of
    return sizes


def _find_precision(code: str) -> Precision:
    """That of most bytes of its floating-point constants."""
    counts: Counter[Precision] = Counter()
    words = [word for _, word in _CONSTANT.findall(code)]
    for dtype, size in zip(words[::2], words[1::2], strict=False):
        found = Precision.of(getattr(torch, dtype, torch.bool))
        if found and found in FLOATS:
            counts[found] += int(size)
    return counts.most_common(1)[0][0] if counts else Precision.FP32


def _refuse(name: str, what: str) -> ZeusError:
    return ZeusError(
        f"model: got the input {name} of {what}; expected contiguous tensors of numbers, whose axes are fixed, "
        "free, or a multiple of a free size. Compile the model with such inputs."
    )
