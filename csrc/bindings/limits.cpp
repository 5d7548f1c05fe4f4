#include "bindings/limits.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/errors.h"
#include "core/executor.h"
#include "probe/ceilings.h"
#include "probe/work.h"

namespace nb = nanobind;

namespace octavo {
namespace {

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
  for (const FeatureName& feature : kFeatureNames) {
    if (is_subset(feature.bit, probe_features())) names.emplace_back(feature.name);
  }
  return names;
}

std::unique_ptr<ReadBuffer> make_read_buffer(Runtime& runtime, size_t num_bytes, double seconds) {
  auto buffer = std::make_unique<ReadBuffer>();
  Status status;
  {
    const nb::gil_scoped_release release;
    status = ReadBuffer::create(num_bytes, runtime.pool, seconds, buffer.get());
  }
  raise_from(status);
  return buffer;
}

double measure_buffer(Runtime& runtime, const ReadBuffer& buffer, size_t num_bytes, double seconds) {
  if (num_bytes > buffer.bytes().size()) throw nb::value_error("num_bytes is more than the buffer has");
  const nb::gil_scoped_release release;
  const std::span<const std::byte> part = buffer.bytes().first(num_bytes);
  return measure_read(*runtime.table->peak, runtime.pool, {&part, 1}, seconds);
}

double measure_weights(Runtime& runtime, size_t max_bytes, double seconds) {
  const nb::gil_scoped_release release;
  const auto parts = matrix_parts(runtime.weights, max_bytes);
  return measure_read(*runtime.table->peak, runtime.pool, parts, seconds);
}

std::optional<double> measure_macs(Runtime& runtime, const std::string& kind, double seconds) {
  const PeakKernels& peak = *runtime.table->peak;
  const PeakLoop* loop = kind == "int8" ? &peak.int8 : kind == "bf16" ? &peak.bf16 : kind == "f32" ? &peak.f32 : nullptr;
  if (loop == nullptr) throw nb::value_error(("no peak of kind " + kind).c_str());
  const nb::gil_scoped_release release;
  const double rate = measure_peak(*loop, probe_features(), runtime.pool, seconds);
  return rate > 0.0 ? std::optional(rate) : std::nullopt;
}

}  // namespace

void bind_limits(nb::module_& m) {
  m.def("cpu_features", &cpu_features, "Names of the CPU's features that kernels or the probe ask for.");
  nb::class_<ReadBuffer>(m, "ReadBuffer")
      .def(nb::new_(&make_read_buffer), nb::arg("runtime"), nb::arg("num_bytes"), nb::arg("seconds"))
      .def_prop_ro("num_bytes", [](const ReadBuffer& b) { return b.bytes().size(); });
  m.def("measure_buffer", &measure_buffer, nb::arg("runtime"), nb::arg("buffer"), nb::arg("num_bytes"),
        nb::arg("seconds"));
  m.def("measure_weights", &measure_weights, nb::arg("runtime"), nb::arg("max_bytes"), nb::arg("seconds"));
  m.def("measure_macs", &measure_macs, nb::arg("runtime"), nb::arg("kind"), nb::arg("seconds"));
  m.def("int8_instructions", [](const Runtime& r) { return std::string(r.table->peak->int8.instructions); },
        nb::arg("runtime"));
  nb::class_<MatrixWork>(m, "MatrixWork")
      .def_ro("int8_macs", &MatrixWork::int8_macs)
      .def_ro("float_macs", &MatrixWork::float_macs)
      .def_ro("num_bytes", &MatrixWork::bytes);
  nb::class_<ProgramWork>(m, "ProgramWork")
      .def_ro("body", &ProgramWork::body)
      .def_ro("head", &ProgramWork::head)
      .def_ro("windows", &ProgramWork::windows);
}

}  // namespace octavo
