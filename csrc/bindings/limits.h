// Bindings of the limits probe.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

// Adds cpu_features, ReadBuffer, measure_* and the classes of Program.work to the module.
void bind_limits(nanobind::module_& m);

}  // namespace octavo
