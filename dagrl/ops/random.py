"""Stateless randomness: numbers that depend on what they are for, not on what was drawn before."""

import hashlib

import torch
from jaxtyping import Float32, Int64
from torch import Tensor


def wrap(value: int) -> int:
    """``value`` modulo 2**64 as torch's int64 holds it."""
    return (value + 2**63) % 2**64 - 2**63


_STEP = wrap(0x9E3779B97F4A7C15)
#: A step along the places of a row, odd as the one along ids is.
_PLACE_STEP = wrap(0xD1B54A32D192ED03)
_UNIFORM_BITS = 24
_MIX_FIRST = wrap(0xBF58476D1CE4E5B9)
_MIX_SECOND = wrap(0x94D049BB133111EB)


def key_of(*parts: int | str) -> int:
    """A 64-bit key (as a signed integer) for a tuple of numbers and names; equal on every machine."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def hash_ids(key: int, ids: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """A number for each id under ``key``, one to one in the ids."""
    return mix(ids * _STEP + wrap(key))


def uniforms(key: int, ids: Int64[Tensor, " B"], width: int) -> Float32[Tensor, "B T"]:
    """Uniform numbers in [0, 1) for ``width`` places of each id, multiples of 2**-24, equal on every device.

    The number at a place depends on key, id and place alone: a wider row only has more of them.
    """
    places = torch.arange(width, device=ids.device) * _PLACE_STEP
    mixed = mix(hash_ids(key, ids).unsqueeze(1) + places)
    return shift_right(mixed, 64 - _UNIFORM_BITS).float() * 2.0**-_UNIFORM_BITS


def mix(value: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): one to one, every input bit moves every output bit."""
    value = (value ^ shift_right(value, 30)) * _MIX_FIRST
    value = (value ^ shift_right(value, 27)) * _MIX_SECOND
    return value ^ shift_right(value, 31)


def shift_right(value: Int64[Tensor, " B"], bits: int) -> Int64[Tensor, " B"]:
    """A logical shift: int64's own repeats the sign bit."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
