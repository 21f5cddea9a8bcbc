"""Pruning: the smallest state that a chain of small matrices needs."""

from collections.abc import Sequence

import numpy as np

_DEPENDENT = 1e-12  # relative residual below which a row is a combination of others
_GROWTH = 16.0  # largest accepted growth of coefficients; more would cost float32 digits


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
        kept, expansion = _independent_rows(matrices[k])
        if len(kept) == len(expansion):
            continue
        following = np.hstack([matrices[k + 1][:, :-1] @ expansion, matrices[k + 1][:, -1:]])
        if np.abs(following).max() <= _GROWTH * np.abs(matrices[k + 1]).max():
            matrices[k] = matrices[k][kept]
            matrices[k + 1] = following
            input_rows[k + 1] = input_rows[k + 1] @ expansion
    return matrices, input_rows


def _independent_rows(matrix: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The first rows that span the others, and ``expansion`` with ``matrix == expansion @ matrix[kept]``."""
    kept = [0]
    expansion = np.zeros((len(matrix), len(matrix)))
    expansion[0, 0] = 1.0
    for index in range(1, len(matrix)):
        row = matrix[index]
        weights = np.linalg.lstsq(matrix[kept].T, row, rcond=None)[0]
        if np.linalg.norm(row - weights @ matrix[kept]) <= _DEPENDENT * np.linalg.norm(row):
            expansion[index, : len(kept)] = weights
        else:
            expansion[index, len(kept)] = 1.0
            kept.append(index)
    return kept, expansion[:, : len(kept)]
