"""What comes before a model is loaded. See octavo.engine.start and octavo.engine.spawn."""

from octavo.engine.spawn import EarlyProcess
from octavo.engine.start import check_start

__all__ = ["EarlyProcess", "check_start"]
