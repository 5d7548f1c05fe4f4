"""The one number that says which bits this version of Octavo computes."""

from __future__ import annotations

from typing import Final

NUMERICS: Final = 1
"""Raised by one with every change after which some kernel, of any table, gives other bits for the same input.

KV blocks on disk are keyed by it: those of another number are never used. The model, the kernel table, the precision of
activations and the KV type are keys of their own, so what differs between them needs no new number.
"""
