"""The figures of theory.py, each a PNG."""

import io
from collections.abc import Mapping
from typing import Any

from PIL import Image

from zeus_trt.evaluation.plots import encode_figure, make_figure

DPI = 100
MODEL_COLOURS = ("#1f4e79", "#e08a1e", "#3a8f4d", "#b3432b", "#7a5195", "#777777")
SCHEME_COLOURS = {"reuse": "#888888", "extrapolate": "#b3432b", "interleaved": "#1f4e79"}


def draw_all(models: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """File name without its suffix -> PNG, of the numbers of each model."""
    return {
        "theory-bias-variance": draw_schemes(models),
        "theory-mean-output": draw_means(models),
        "theory-orders": draw_orders(models),
        "theory-crossover": draw_crossover(models),
    }


def draw_schemes(models: Mapping[str, Any]) -> bytes:
    """Bias and variance of the three schemes by step, a column per model."""
    figure, axes = _make_grid(2, len(models), 5.0, 9.0, share="row")
    for column, (name, found) in enumerate(models.items()):
        schemes, top, bottom = found["schemes"], axes[0][column], axes[1][column]
        for scheme, colour in SCHEME_COLOURS.items():
            numbers, label = schemes[scheme], scheme if column == 0 else None
            top.semilogy(schemes["steps"], numbers["bias"], ".-", color=colour, label=label)
            bottom.semilogy(schemes["steps"], numbers["variance"], ".-", color=colour)
            if "bias_in_theory" in numbers:
                label = f"{scheme} in theory" if column == 0 else None
                top.semilogy(schemes["steps"], numbers["bias_in_theory"], "--", color=colour, linewidth=1, label=label)
                bottom.axhline(numbers["noise_in_theory"], linestyle="--", color=colour, linewidth=1)
        top.set_title(_shorten(name), fontsize=10)
    axes[1][len(models) // 2].set_xlabel("full step t before the block")
    axes[0][0].set_ylabel("bias / RMS of outputs")
    axes[1][0].set_ylabel("variance / mean square")
    return _finish(figure, 5)


def draw_means(models: Mapping[str, Any]) -> bytes:
    """The mean output by step, and the second difference over the first."""
    figure, ((left, right),) = _make_grid(1, 2, 4.0, 9.0)
    for (name, found), colour in zip(models.items(), MODEL_COLOURS, strict=False):
        means = found["means"]
        steps = range(len(means["mean"]))
        around = [[m + sign * d for m, d in zip(means["mean"], means["deviation"], strict=True)] for sign in (-1, 1)]
        left.fill_between(steps, *around, color=colour, alpha=0.15, linewidth=0)
        left.plot(steps, means["mean"], color=colour, label=_shorten(name))
        right.semilogy(means["steps"], means["bend"], color=colour)
    right.axhline(1, color="black", linewidth=0.8, linestyle=":")
    left.set(xlabel="step", ylabel="mean output (band: one deviation)")
    right.set(xlabel="step t", ylabel="error of a line / error of reuse")
    _mark(right, (0.5, 1, 2, 4))
    return _finish(figure, 5)


def draw_orders(models: Mapping[str, Any]) -> bytes:
    """Growth of errors by order beside the Lebesgue constant, and the error of one prediction."""
    figure, ((left, right),) = _make_grid(1, 2, 4.3, 9.0)
    for place, ((name, found), colour) in enumerate(zip(models.items(), MODEL_COLOURS, strict=False)):
        orders = [one["order"] for one in found["orders"]]
        low, middle, high = zip(*(one["growth"] for one in found["orders"]), strict=True)
        shifted = [order + 0.07 * (place - (len(models) - 1) / 2) for order in orders]
        left.vlines(shifted, low, high, color=colour, linewidth=1)
        left.plot(shifted, middle, "o", color=colour, ms=4)
        right.semilogy(orders, [one["clean"] for one in found["orders"]], ".--", color=colour, linewidth=1)
        right.semilogy(orders, [one["used"] for one in found["orders"]], ".-", color=colour, label=_shorten(name))
    left.plot(orders, [one["lebesgue"] for one in found["orders"]], "k_-", linewidth=1, label="bound 2^k - 1")
    left.plot(orders, [one["white_noise"] for one in found["orders"]], "k:", linewidth=1, label="white noise")
    right.plot([], [], "k.--", linewidth=1, label="from real outputs")
    right.plot([], [], "k.-", linewidth=1, label="from outputs used at r = 2")
    left.set(xlabel="order k", ylabel="growth of an error (median, range)", yscale="log", xticks=orders)
    right.set(xlabel="order k", ylabel="error of a prediction / RMS of outputs", xticks=orders)
    _mark(left, (0.5, 1, 3, 7, 15))
    _mark(right, (0.02, 0.05, 0.1, 0.2, 0.5))
    return _finish(figure, 5)


def draw_crossover(models: Mapping[str, Any]) -> bytes:
    """The line's error over that of reuse by noise, and the noise where they cross by stride."""
    figure, ((left, right),) = _make_grid(1, 2, 4.0, 9.0)
    for (name, found), colour in zip(models.items(), MODEL_COLOURS, strict=False):
        numbers = found["crossover"]
        left.loglog(numbers["noises"], numbers["expected"], "--", color=colour, linewidth=1)
        left.loglog(numbers["noises"], numbers["ratio"], "o", color=colour, ms=4, label=_shorten(name))
        for key, style in (("predicted", "x--"), ("measured", "o")):
            points = [(h, s) for h, s in zip(numbers["strides"], numbers[key], strict=True) if s is not None]
            if points:
                right.plot(*zip(*points, strict=True), style, color=colour, linewidth=1, ms=4)
    left.axhline(1, color="black", linewidth=0.8, linestyle=":")
    left.plot([], [], "kx--", linewidth=1, ms=4, label="predicted")
    left.plot([], [], "ko", ms=4, label="measured")
    left.set(xlabel="noise / RMS of outputs", ylabel="MSE of a line / MSE of reuse")
    right.set(xlabel="stride h, steps", ylabel="noise above which reuse is better", xticks=numbers["strides"])
    right.set_ylim(bottom=0)
    _mark(left, (0.5, 1, 2, 5))
    return _finish(figure, 7)


def _make_grid(rows: int, columns: int, height: float, width: float, share: str | bool = False) -> tuple[Any, Any]:
    figure, _ = make_figure(height, width)
    figure.clear()
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _mark(axes: Any, values: tuple[float, ...]) -> None:
    axes.set_yticks(values, [f"{value:g}" for value in values])
    axes.yaxis.minorticks_off()


def _finish(figure: Any, columns: int) -> bytes:
    """The PNG, of 64 colours: a third of the bytes."""
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    picture = Image.open(io.BytesIO(encode_figure(figure, DPI))).convert("RGB").quantize(64)
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def _shorten(name: str) -> str:
    return name.removeprefix("digits-")
