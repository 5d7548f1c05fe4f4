"""Whether there is room to start at all. See octavo.engine.start."""

from octavo.engine.start import check_start

__all__ = ["check_start"]
