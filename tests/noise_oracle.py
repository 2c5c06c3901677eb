"""The noise of docs/noise.md in plain NumPy: an oracle written from that page alone, not from the code of the package.

The words and the uniforms are exact. What is rounded, in float64, is ln, sqrt, cos, sin and the products.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], dtype=np.uint64)
KEY_STEP = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint32)
LOW = np.uint64(2**32 - 1)
HALF = np.uint64(32)


def philox4x32_10(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return the four words, uint32 (..., 4), of each counter, uint32 (..., 4), under one key, uint32 (2,)."""
    c0, c1, c2, c3 = np.moveaxis(counter.astype(np.uint64), -1, 0)
    for _ in range(10):
        k0, k1 = key.astype(np.uint64)
        p0 = MULTIPLIERS[0] * c0
        p1 = MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ k0, p1 & LOW, (p0 >> HALF) ^ c3 ^ k1, p0 & LOW
        key = key + KEY_STEP  # modulo 2^32, as uint32 arrays wrap
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def box_muller(radius_word: np.ndarray, angle_word: np.ndarray) -> np.ndarray:
    """Return the pairs of normals, float64 (..., 2), of pairs of words, uint32 (...)."""
    i = (radius_word & np.uint32(2**31 - 1)).astype(np.float32)
    u = i * np.float32(2.0**-31) + np.float32(2.0**-32)
    t = angle_word.view(np.int32).astype(np.float32) * np.float32(2.0**-32)

    r = np.sqrt(-2.0 * np.log(u.astype(np.float64)))
    t = t.astype(np.float64)
    mirror = np.where(radius_word >= np.uint32(2**31), -1.0, 1.0)
    cosine = np.sin(np.pi * (0.5 - np.abs(t)))  # cos(pi t), accurate near its zeros as well: the difference is exact
    sine = np.sin(np.pi * t)
    return np.stack([mirror * r * cosine, r * sine], axis=-1)


def normals(
    seed: int, rows: np.ndarray, samples: np.ndarray, dimensions: int, dtype: npt.DTypeLike = np.float64
) -> np.ndarray:
    """Return the normals (len(samples), len(rows), dimensions), computed in float64 and then rounded to `dtype`."""
    rows = np.asarray(rows, dtype=np.uint64)
    samples = np.asarray(samples, dtype=np.uint32)
    blocks = -(-dimensions // 4)

    key = np.array([seed % 2**32, seed % 2**64 // 2**32], dtype=np.uint32)
    counter = np.empty((len(samples), len(rows), blocks, 4), dtype=np.uint32)
    counter[..., 0] = np.arange(blocks)
    counter[..., 1] = samples[:, None, None]
    counter[..., 2] = (rows & LOW)[:, None]
    counter[..., 3] = (rows >> HALF)[:, None]

    words = philox4x32_10(counter, key)
    pairs = box_muller(words[..., 0::2], words[..., 1::2])
    return pairs.reshape(len(samples), len(rows), 4 * blocks)[..., :dimensions].astype(dtype)
