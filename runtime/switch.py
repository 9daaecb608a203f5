"""The active adapter inside a model at each token (Granite Switch).

Source: llama.cpp's graph: a head of attention without weights, whose keys are a gain at control tokens and minus that
elsewhere, and whose values are the numbers of adapters.
"""

import numpy as np

from .arrays import Ids
from .layer import ForwardContext


def substitute(forward: ForwardContext, ids: Ids) -> Ids:
    """Return the tokens with substitutes for control tokens; record the active adapter in `forward.adapters`."""
    controls, others = (forward.keys.stored(f"adapters.token_ids_{each}") for each in ("activate", "substitute"))
    if controls is None:
        return ids
    order = np.argsort(controls, kind="stable")
    controls, others = np.asarray(controls)[order], np.asarray(others)[order]
    place = np.minimum(np.searchsorted(controls, ids), len(controls) - 1)
    switches = controls[place] == ids
    forward.adapters = _active_adapters(forward, np.where(switches, order[place] + 1, 0))
    return np.where(switches, others[place], ids)


def _active_adapters(forward: ForwardContext, numbers: Ids) -> Ids:
    """Return the number of the active adapter at each token, 0 for none. numbers: of the adapters that control tokens
    activate.
    """
    gain = np.float32(forward.keys.get("adapters.router_gain"))
    v = numbers.astype(np.float32)
    k = np.where(v > 0, gain, -gain)
    if forward.cache is not None:  # next to the layers' keys and values, equally wide
        width = forward.hparams.layers[0].key_width
        wide = (np.pad(each[:, None, None], ((0, 0), (0, 0), (0, width - 1))) for each in (k, v))
        k, v = (each[:, 0, 0] for each in forward.cache.append(len(forward.network.layers), *wide))
    k, v = (each.reshape(forward.texts, -1) for each in (k, v))
    weights = np.maximum(np.exp(k.astype(np.float64) - gain), np.finfo(np.float64).tiny)
    mean = (np.cumsum(weights * v, axis=1) / np.cumsum(weights, axis=1)).astype(np.float32)
    adapters = int(forward.keys.need("adapters.count"))
    on: Ids = np.clip(np.floor(mean[:, -forward.length :] + np.float32(0.5)), 0, adapters).astype(np.int64)
    return on.reshape(-1)
