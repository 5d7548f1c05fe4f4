// What a Status becomes in Python.
#pragma once

#include <nanobind/nanobind.h>

#include "core/status.h"

namespace octavo {

inline void raise_from(const Status& status) {
  namespace nb = nanobind;
  if (status.ok()) return;
  if (status.code() == StatusCode::kInvalid) throw nb::value_error(status.message().c_str());
  const char* name = status.code() == StatusCode::kModel ? "UnsupportedArchitecture" : "CapacityError";
  PyErr_SetString(nb::module_::import_("octavo.errors").attr(name).ptr(), status.message().c_str());
  throw nb::python_error();
}

}  // namespace octavo
