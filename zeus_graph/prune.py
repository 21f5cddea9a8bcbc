"""Pruning: the smallest state that a chain of small matrices needs."""

from collections.abc import Sequence

import numpy as np

_RANK = 1e-13  # singular value, relative to the largest, that counts as zero
_WEIGHT = 4.0  # largest accepted weight of the sample in a dropped latent; more would cost float32 digits


def prune(
    matrices: Sequence[np.ndarray], input_rows: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Drops latents that nothing reads, and those that are combinations of others.

    Latent 0, the sample, always stays, and every latent that stays keeps its meaning.

    Args:
        matrices: Per step k shape (L_(k+1), L_k + 1): the new state from [state; model output].
            Of the last one just row 0 is wanted.
        input_rows: Per step k shape (L_k,): the model input from the state.

    Returns:
        Matrices and input rows over the smaller states; the last matrix has one row.
    """
    matrices, input_rows = _drop_unread(matrices, input_rows)
    matrices, input_rows = _drop_dependent(matrices, input_rows)
    return _drop_unread(matrices, input_rows)


def _drop_unread(
    matrices: Sequence[np.ndarray], input_rows: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    matrices, input_rows = list(matrices), list(input_rows)
    live = np.array([0])
    for k in reversed(range(len(matrices))):
        matrix = matrices[k][live]
        read = (matrix[:, :-1] != 0).any(axis=0) | (input_rows[k] != 0)
        read[0] = True
        live = np.flatnonzero(read)
        matrices[k] = matrix[:, [*live, -1]]
        input_rows[k] = input_rows[k][live]
    return matrices, input_rows


def _drop_dependent(
    matrices: list[np.ndarray], input_rows: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    for k in range(len(matrices) - 1):
        while (found := _dependent_row(matrices[k])) is not None:
            row, weights = found
            matrices[k] = np.delete(matrices[k], row, axis=0)
            following = matrices[k + 1] + np.outer(matrices[k + 1][:, row], np.append(weights, 0.0))
            matrices[k + 1] = np.delete(following, row, axis=1)
            input_rows[k + 1] = np.delete(input_rows[k + 1] + input_rows[k + 1][row] * weights, row)
    return matrices, input_rows


def _dependent_row(matrix: np.ndarray) -> tuple[int, np.ndarray] | None:
    """Finds a row, not the first, that is a linear combination of the others: (row, weights), or None.

    Of the rows in a dependency, the one that takes the smallest weights in units of the rows' lengths.
    """
    if len(matrix) == 1:
        return None
    lengths = np.linalg.norm(matrix, axis=1)
    lengths[lengths == 0] = 1.0
    vectors, values, _ = np.linalg.svd(matrix / lengths[:, None])
    if len(values) == len(matrix) and values[-1] > _RANK * values[0]:
        return None
    null = vectors[:, -1]
    row = 1 + int(np.argmax(np.abs(null[1:])))
    if abs(null[0]) > _WEIGHT * abs(null[row]):
        return None
    weights = -(null / null[row]) * (lengths[row] / lengths)
    weights[row] = 0.0
    return row, weights
