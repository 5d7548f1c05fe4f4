"""The native backend. Kernels, packed weights and the step itself are C++; see csrc/."""

from octavo.ops.native.backend import NativeBackend, NativeExecutor, supported_isas

__all__ = ["NativeBackend", "NativeExecutor", "supported_isas"]
