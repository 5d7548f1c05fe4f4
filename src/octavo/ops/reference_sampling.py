"""The definition of sampling: what token a row of logits gives. Slow and obvious, one row at a time.

Bias and penalties are float32 arithmetic in the order written here, so that equal logits stay equal on every backend;
everything from the temperature on is float64. Parameters count as the float32 values they are stored as.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.ops.philox import uniform
from octavo.ops.protocol import Floats, Int64s, SampleBatch, SampleResult

Doubles = npt.NDArray[np.float64]


def empty_result(batch: SampleBatch) -> SampleResult:
    """A result with room for every row of the batch; nothing asked for is NaN, -1 or rank 0."""
    num_rows = len(batch.temperature)
    width = max(0, int(batch.num_logprobs.max(initial=0)))
    return SampleResult(
        token_ids=np.zeros(num_rows, np.int32),
        logprobs=np.full(num_rows, np.nan, np.float32),
        ranks=np.zeros(num_rows, np.int32),
        top_ids=np.full((num_rows, width), -1, np.int32),
        top_logprobs=np.full((num_rows, width), np.nan, np.float32),
    )


def sample_rows(logits: Floats, batch: SampleBatch, first_row: int, result: SampleResult) -> None:
    """Choose the tokens of a slab of logits [rows, vocab]: rows first_row .. of the batch and of the result."""
    for row, row_logits in enumerate(logits, start=first_row):
        is_scored = bool(batch.is_scored[row])
        token = int(batch.targets[row]) if is_scored else draw(row_logits, batch, row)
        result.token_ids[row] = token
        if batch.num_logprobs[row] >= 0:
            _report(row_logits, token, int(batch.num_logprobs[row]), result, row)


def draw(logits: Floats, batch: SampleBatch, row: int) -> int:
    """The token of one row: the greatest logit at temperature 0, else one drawn as Executor.execute says."""
    adjusted = penalised(logits, batch, row)
    temperature = float(batch.temperature[row])
    best = int(np.argmax(adjusted))  # the first, so the lowest id, of equal ones
    if temperature == 0.0 or not np.isfinite(adjusted[best]):
        return best
    scaled = (adjusted.astype(np.float64) - float(adjusted[best])) / temperature
    probs = _normalised(np.exp(scaled))
    probs = keep_min_p(probs, float(batch.min_p[row]))
    probs = keep_top_k(probs, int(batch.top_k[row]))
    probs = keep_top_p(probs, float(batch.top_p[row]))
    probs = keep_typical(probs, float(batch.typical_p[row]))
    u = uniform(int(batch.seeds[row]), int(batch.choices[row]), int(batch.positions[row]))
    return pick(probs, u)


def penalised(logits: Floats, batch: SampleBatch, row: int) -> Floats:
    """Logits after bias, repetition, presence and frequency penalty, in this order; the input is left alone."""
    out = logits.copy()
    bias = slice(batch.bias_start[row], batch.bias_start[row + 1])
    np.add.at(out, batch.bias_ids[bias], batch.bias_values[bias])
    seen = np.unique(batch.seen_ids[batch.seen_start[row] : batch.seen_start[row + 1]])
    repetition = batch.repetition_penalty[row]
    if repetition != 1.0:
        values = out[seen]
        out[seen] = np.where(values > 0, values / repetition, values * repetition)
    made = batch.made_ids[batch.made_start[row] : batch.made_start[row + 1]]
    ids, counts = np.unique(made, return_counts=True)
    out[ids] -= batch.presence_penalty[row]
    out[ids] -= batch.frequency_penalty[row] * counts.astype(np.float32)
    out[np.isnan(out)] = -np.inf  # what is no number is never chosen
    return out


def keep_min_p(probs: Doubles, min_p: float) -> Doubles:
    """Keep the ids with at least `min_p` times the greatest probability. 0 keeps all."""
    return _kept(probs, probs >= min_p * probs.max()) if min_p > 0.0 else probs


def keep_top_k(probs: Doubles, top_k: int) -> Doubles:
    """Keep the `top_k` most probable ids. 0 keeps all."""
    if top_k <= 0:
        return probs
    return _kept_ids(probs, _ranked(-probs)[:top_k])


def keep_top_p(probs: Doubles, top_p: float) -> Doubles:
    """Keep the shortest run of most probable ids whose probabilities sum to `top_p` or more. 1 keeps all."""
    return _keep_mass(probs, -probs, top_p) if top_p < 1.0 else probs


def keep_typical(probs: Doubles, typical_p: float) -> Doubles:
    """Keep the ids whose surprise is nearest to the entropy, until they sum to `typical_p` or more. 1 keeps all.

    Source: Meister et al. 2023, "Locally typical sampling".
    """
    if typical_p >= 1.0:
        return probs
    is_possible = probs > 0
    surprise = np.full_like(probs, np.inf)  # an id without probability is never typical
    surprise[is_possible] = -np.log(probs[is_possible])
    entropy = float(probs[is_possible] @ surprise[is_possible])
    return _keep_mass(probs, np.abs(surprise - entropy), typical_p)


def pick(probs: Doubles, u: float) -> int:
    """The first id, in rising order, whose cumulative probability exceeds `u`."""
    ids = np.flatnonzero(probs)
    cumulative = np.cumsum(probs[ids])
    # Rounding may leave the last sum just below u: then the last id is meant.
    return int(ids[min(int(np.searchsorted(cumulative, u, side="right")), len(ids) - 1)])


def _keep_mass(probs: Doubles, keys: Doubles, mass: float) -> Doubles:
    """Keep ids in rising order of `keys` until their probabilities sum to `mass`: at least one."""
    order = _ranked(keys)
    reached = np.cumsum(probs[order]) >= mass
    num_kept = int(np.argmax(reached)) + 1 if reached.any() else len(order)
    return _kept_ids(probs, order[:num_kept])


def _ranked(keys: npt.NDArray[np.floating]) -> Int64s:
    """Ids by rising key; equal keys by rising id."""
    return np.argsort(keys, kind="stable")


def _kept_ids(probs: Doubles, ids: Int64s) -> Doubles:
    is_kept = np.zeros(len(probs), np.bool_)
    is_kept[ids] = True
    return _kept(probs, is_kept)


def _kept(probs: Doubles, is_kept: npt.NDArray[np.bool_]) -> Doubles:
    return _normalised(np.where(is_kept, probs, 0.0))


def _normalised(probs: Doubles) -> Doubles:
    normalised: Doubles = probs / probs.sum()
    return normalised


def log_normaliser(logits: Floats) -> float:
    """Log of the sum of the exponentials: what log-softmax takes away from each logit of a row."""
    greatest = float(logits.max())
    return greatest + float(np.log(np.exp(logits.astype(np.float64) - greatest).sum()))


def _report(logits: Floats, token: int, num_top: int, result: SampleResult, row: int) -> None:
    """Fill in logprob, rank and alternatives of a row. Alternatives are ranked by logit: rounding makes no ties."""
    normaliser = log_normaliser(logits)
    result.logprobs[row] = float(logits[token]) - normaliser
    result.ranks[row] = 1 + np.count_nonzero(logits > logits[token])
    if num_top > 0:
        ids = _ranked(-logits)[:num_top]
        result.top_ids[row, : len(ids)] = ids
        result.top_logprobs[row, : len(ids)] = logits[ids].astype(np.float64) - normaliser
