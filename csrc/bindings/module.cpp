// The Python module octavo.ops.native._native. Only the files of bindings/ include Python headers.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/errors.h"
#include "bindings/limits.h"
#include "core/executor.h"
#include "cpu/dispatch.h"
#include "probe/work.h"

namespace nb = nanobind;
using namespace octavo;

namespace {

template <typename T, int kDims>
using Array = nb::ndarray<T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;

template <typename T>
constexpr const char* type_name() {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, int32_t>) return "int32";
  if constexpr (std::is_same_v<Plain, uint64_t>) return "uint64";
  if constexpr (std::is_same_v<Plain, float>) return "float32";
  return "bool";
}

// Reads array attributes of a Python object, and keeps the arrays alive.
class Reader {
 public:
  explicit Reader(nb::handle object) : object_(object) {}

  template <typename T>
  std::span<T> vector(const char* name) {
    const auto array = get<T, 1>(name);
    return {array.data(), array.size()};
  }
  template <typename T>
  std::span<T> matrix(const char* name, int32_t* width) {
    const auto array = get<T, 2>(name);
    *width = static_cast<int32_t>(array.shape(1));
    return {array.data(), array.size()};
  }

 private:
  template <typename T, int kDims>
  Array<T, kDims> get(const char* name) {
    nb::object value = object_.attr(name);
    Array<T, kDims> array;
    if (!nb::try_cast(value, array, /*convert=*/false)) {
      const std::string message = std::string(name) + " must be a contiguous " + type_name<T>() + " array of " +
                                  std::to_string(kDims) + (kDims == 1 ? " dimension" : " dimensions");
      throw nb::value_error(message.c_str());
    }
    kept_.push_back(std::move(value));
    return array;
  }

  nb::handle object_;
  std::vector<nb::object> kept_;
};

BatchView read_batch(Reader& from) {
  BatchView view;
  view.token_ids = from.vector<const int32_t>("token_ids");
  view.positions = from.vector<const int32_t>("positions");
  view.slots = from.vector<const int32_t>("slots");
  view.query_start = from.vector<const int32_t>("query_start");
  view.seq_lens = from.vector<const int32_t>("seq_lens");
  view.block_tables = from.matrix<const int32_t>("block_tables", &view.table_width);
  view.output_rows = from.vector<const int32_t>("output_rows");
  return view;
}

SampleView read_sample(Reader& from) {
  SampleView view;
  view.temperature = from.vector<const float>("temperature");
  view.top_k = from.vector<const int32_t>("top_k");
  view.top_p = from.vector<const float>("top_p");
  view.min_p = from.vector<const float>("min_p");
  view.typical_p = from.vector<const float>("typical_p");
  view.repetition_penalty = from.vector<const float>("repetition_penalty");
  view.presence_penalty = from.vector<const float>("presence_penalty");
  view.frequency_penalty = from.vector<const float>("frequency_penalty");
  view.seeds = from.vector<const uint64_t>("seeds");
  view.choices = from.vector<const int32_t>("choices");
  view.positions = from.vector<const int32_t>("positions");
  view.is_scored = from.vector<const bool>("is_scored");
  view.targets = from.vector<const int32_t>("targets");
  view.num_logprobs = from.vector<const int32_t>("num_logprobs");
  view.bias_start = from.vector<const int32_t>("bias_start");
  view.bias_ids = from.vector<const int32_t>("bias_ids");
  view.bias_values = from.vector<const float>("bias_values");
  view.seen_start = from.vector<const int32_t>("seen_start");
  view.seen_ids = from.vector<const int32_t>("seen_ids");
  view.made_start = from.vector<const int32_t>("made_start");
  view.made_ids = from.vector<const int32_t>("made_ids");
  return view;
}

ResultView read_result(Reader& from) {
  ResultView view;
  view.token_ids = from.vector<int32_t>("token_ids");
  view.logprobs = from.vector<float>("logprobs");
  view.ranks = from.vector<int32_t>("ranks");
  int32_t width = 0;
  view.top_ids = from.matrix<int32_t>("top_ids", &view.top_width);
  view.top_logprobs = from.matrix<float>("top_logprobs", &width);
  return view;
}

std::vector<std::string> supported_names() {
  std::vector<std::string> names;
  for (const KernelTable* table : supported_tables(probe_features())) names.emplace_back(table->name);
  return names;
}

std::shared_ptr<Runtime> make_runtime(int num_threads, const std::string& table_name, int32_t activation_terms) {
  if (num_threads < 1 || num_threads > 1024) throw nb::value_error("num_threads must be in 1 .. 1024");
  const KernelTable* table = choose_table(table_name, probe_features());
  if (table == nullptr) throw nb::value_error(("no kernel table " + table_name).c_str());
  if (activation_terms != 1 && activation_terms != 2) throw nb::value_error("activation_terms must be 1 or 2");
  return std::make_shared<Runtime>(num_threads, table, static_cast<Precision>(activation_terms));
}

int32_t add_matrix(Runtime& runtime, int32_t format, int32_t rows, int32_t cols,
                   const Array<const uint8_t, 1>& bytes) {
  int32_t id = -1;
  Status status;
  {
    const nb::gil_scoped_release release;
    const std::span source(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
    status = runtime.weights.add_matrix(static_cast<WeightFormat>(format), rows, cols, source, runtime.pool, &id);
  }
  raise_from(status);
  return id;
}

int32_t add_vector(Runtime& runtime, const Array<const float, 1>& values) {
  int32_t id = -1;
  raise_from(runtime.weights.add_vector({values.data(), values.size()}, &id));
  return id;
}

template <typename T>
using OwnedArray = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

OwnedArray<uint8_t> pack(Runtime& runtime, int32_t format, int32_t rows, int32_t cols,
                         const Array<const uint8_t, 1>& bytes) {
  auto packed = std::make_unique<Mapping>();
  Status status;
  {
    const nb::gil_scoped_release release;
    const std::span source(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
    status = WeightStore::pack(static_cast<WeightFormat>(format), rows, cols, source, runtime.pool, packed.get());
  }
  raise_from(status);
  Mapping* memory = packed.release();
  const nb::capsule owner(memory, [](void* mapping) noexcept { delete static_cast<Mapping*>(mapping); });
  return OwnedArray<uint8_t>(memory->as<uint8_t>(), {memory->size()}, owner);
}

OwnedArray<uint64_t> checksums(Runtime& runtime, const Array<const uint8_t, 1>& bytes) {
  auto sums = std::make_unique<std::vector<uint64_t>>(num_file_blocks(bytes.size()));
  {
    const nb::gil_scoped_release release;
    checksum_blocks({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, runtime.pool, *sums);
  }
  std::vector<uint64_t>* out = sums.release();
  const nb::capsule owner(out, [](void* vector) noexcept { delete static_cast<std::vector<uint64_t>*>(vector); });
  return OwnedArray<uint64_t>(out->data(), {out->size()}, owner);
}

int32_t load_region(Runtime& runtime, int fd, uint64_t offset, uint64_t bytes, const Array<const uint64_t, 1>& sums,
                    bool is_mapped) {
  int32_t id = -1;
  Status status;
  {
    const nb::gil_scoped_release release;
    const FilePart part{fd, offset, bytes, {sums.data(), sums.size()}};
    Mapping memory;
    status = is_mapped ? map_part(part, &memory) : read_part(part, runtime.pool, &memory);
    if (status.ok()) runtime.weights.add_region(std::move(memory), &id);
  }
  raise_from(status);
  return id;
}

int32_t adopt_matrix(Runtime& runtime, int32_t format, int32_t rows, int32_t cols, int32_t region, size_t offset) {
  int32_t id = -1;
  raise_from(runtime.weights.adopt_matrix(static_cast<WeightFormat>(format), rows, cols, region, offset, &id));
  return id;
}

int32_t adopt_vector(Runtime& runtime, int32_t size, int32_t region, size_t offset) {
  int32_t id = -1;
  raise_from(runtime.weights.adopt_vector(size, region, offset, &id));
  return id;
}

// A program keeps the weights it refers to.
struct Recording {
  explicit Recording(std::shared_ptr<Runtime> shared) : runtime(std::move(shared)), program(runtime->weights) {}
  std::shared_ptr<Runtime> runtime;
  Program program;

  // Calls a recording function and returns the id it gives.
  template <typename... Params, typename... Args>
  ValueId record(Status (Program::*function)(Params...), Args&&... args) {
    ValueId out = -1;
    raise_from((program.*function)(std::forward<Args>(args)..., &out));
    return out;
  }
};

void bind_program(nb::module_& m) {
  nb::class_<Recording>(m, "Program")
      .def(nb::init<std::shared_ptr<Runtime>>(), nb::arg("runtime"))
      .def("embed", [](Recording& r, int32_t matrix, float scale) { return r.record(&Program::embed, matrix, scale); })
      .def("linear",
           [](Recording& r, ValueId x, int32_t matrix, int32_t bias) {
             return r.record(&Program::linear, x, matrix, bias);
           })
      .def("rms_norm",
           [](Recording& r, ValueId x, int32_t weight, float eps) {
             return r.record(&Program::rms_norm, x, weight, eps);
           })
      .def(
          "rope",
          [](Recording& r, ValueId x, int32_t head_dim, int32_t num_dims, bool is_neox,
             const std::vector<double>& frequencies) {
            const RopeOrder order = is_neox ? RopeOrder::kNeox : RopeOrder::kAdjacent;
            return r.record(&Program::rope, x, RopeSpec{head_dim, num_dims, order, frequencies});
          },
          nb::arg("x"), nb::kw_only(), nb::arg("head_dim"), nb::arg("num_dims"), nb::arg("is_neox"),
          nb::arg("frequencies"))
      .def(
          "attention",
          [](Recording& r, ValueId q, ValueId k, ValueId v, int32_t layer, int32_t num_heads, int32_t num_kv_heads,
             int32_t head_dim, float scale, int32_t window, float softcap) {
            const AttentionShape shape{num_heads, num_kv_heads, head_dim, scale, window, softcap};
            return r.record(&Program::attention, q, k, v, AttentionSpec{layer, shape});
          },
          nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(), nb::arg("layer"), nb::arg("num_heads"),
          nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("scale"), nb::arg("window"), nb::arg("softcap"))
      .def(
          "gated",
          [](Recording& r, ValueId gate, ValueId up, bool is_gelu) {
            return r.record(&Program::gated, gate, up, is_gelu ? Activation::kGeluTanh : Activation::kSilu);
          },
          nb::arg("gate"), nb::arg("up"), nb::kw_only(), nb::arg("is_gelu"))
      .def("add", [](Recording& r, ValueId a, ValueId b) { return r.record(&Program::add, a, b); })
      .def("softcap", [](Recording& r, ValueId x, float cap) { return r.record(&Program::softcap, x, cap); })
      .def("end_body", [](Recording& r, ValueId hidden) { return r.record(&Program::end_body, hidden); })
      .def("end_head", [](Recording& r, ValueId logits) { raise_from(r.program.end_head(logits)); })
      .def_prop_ro("work", [](const Recording& r) { return work_of(r.program, r.runtime->weights); });
}

std::unique_ptr<Executor> make_executor(const Recording& recording, int32_t num_layers, int32_t num_kv_heads,
                                        int32_t head_dim, int32_t kv_type, int32_t num_blocks,
                                        int32_t max_batched_tokens) {
  if (kv_type < 0 || kv_type >= kNumKVTypes) throw nb::value_error("no such KV type");
  const KVShape shape{num_layers, num_kv_heads, head_dim, static_cast<KVType>(kv_type)};
  std::unique_ptr<Executor> executor;
  raise_from(Executor::create(recording.runtime, recording.program, shape, num_blocks, max_batched_tokens, &executor));
  return executor;
}

void execute(Executor& executor, nb::handle batch, nb::handle sample, nb::handle result) {
  Reader batch_reader(batch), sample_reader(sample), result_reader(result);
  const BatchView batch_view = read_batch(batch_reader);
  const SampleView sample_view = read_sample(sample_reader);
  const ResultView result_view = read_result(result_reader);
  Status status;
  {
    const nb::gil_scoped_release release;
    status = executor.execute(batch_view, sample_view, result_view);
  }
  raise_from(status);
}

// Writes tokens [num_steps * R]; returns the number of steps done.
int32_t decode(Executor& executor, nb::handle batch, nb::handle sample, nb::handle run,
               const Array<int32_t, 1>& tokens) {
  Reader batch_reader(batch), sample_reader(sample), run_reader(run);
  const BatchView batch_view = read_batch(batch_reader);
  const SampleView sample_view = read_sample(sample_reader);
  const DecodeRunView run_view{nb::cast<int32_t>(run.attr("num_steps")), run_reader.vector<const int32_t>("end_start"),
                               run_reader.vector<const int32_t>("end_ids"), run_reader.vector<int32_t>("stop")};
  int32_t num_done = 0;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = executor.decode(batch_view, sample_view, run_view, {tokens.data(), tokens.size()}, &num_done);
  }
  raise_from(status);
  return num_done;
}

// (kind, [(ggml type, rows, cols, packed bytes), ...], calls, rows, ns of work, ns of waiting) of each operation.
nb::list op_counts(const Executor& executor) {
  nb::list out;
  for (const OpCount& count : executor.op_counts()) {
    nb::list matrices;
    for (const PackedMatrix* matrix : count.matrices) {
      const size_t bytes = matrix->num_panels * matrix->panel_bytes;
      matrices.append(nb::make_tuple(static_cast<int32_t>(matrix->format), matrix->rows, matrix->cols, bytes));
    }
    const StageCounter& sum = count.sum;
    out.append(nb::make_tuple(count.kind, matrices, sum.calls, sum.rows, sum.work_ns, sum.wait_ns));
  }
  return out;
}

void watch(Executor& executor, const Array<int64_t, 1>& counter) {
  if (counter.size() != 1) throw nb::value_error("the counter is one number");
  executor.watch(counter.data());
}

OwnedArray<uint8_t> read_block(Executor& executor, int32_t id) {
  std::span<std::byte> block;
  raise_from(executor.kv().block(id, &block));
  auto* copy = new std::vector<uint8_t>();
  const nb::capsule owner(copy, [](void* vector) noexcept { delete static_cast<std::vector<uint8_t>*>(vector); });
  {
    const nb::gil_scoped_release release;
    const auto* bytes = reinterpret_cast<const uint8_t*>(block.data());
    copy->assign(bytes, bytes + block.size());
  }
  return OwnedArray<uint8_t>(copy->data(), {copy->size()}, owner);
}

void write_block(Executor& executor, int32_t id, const Array<const uint8_t, 1>& bytes) {
  std::span<std::byte> block;
  raise_from(executor.kv().block(id, &block));
  if (bytes.size() != block.size()) {
    const std::string message =
        "a block has " + std::to_string(block.size()) + " bytes, not " + std::to_string(bytes.size());
    throw nb::value_error(message.c_str());
  }
  const nb::gil_scoped_release release;
  std::memcpy(block.data(), bytes.data(), block.size());
}

void bind_executor(nb::module_& m) {
  nb::class_<Executor>(m, "Executor")
      .def("execute", &execute, nb::arg("batch"), nb::arg("sample"), nb::arg("result"))
      .def("decode", &decode, nb::arg("batch"), nb::arg("sample"), nb::arg("run"), nb::arg("tokens"))
      .def("copy_blocks",
           [](Executor& executor, const std::vector<std::pair<int32_t, int32_t>>& pairs) {
             raise_from(executor.kv().copy(pairs));
           })
      .def("read_block", &read_block, nb::arg("block_id"))
      .def("write_block", &write_block, nb::arg("block_id"), nb::arg("data"))
      .def("set_counting", &Executor::set_counting, nb::arg("is_counting"))
      .def("watch", &watch, nb::arg("counter"), nb::keep_alive<1, 2>())
      .def("op_counts", &op_counts)
      .def("fill_kv", [](Executor& executor, float value) { executor.kv().fill(value); })
      .def_prop_ro("kv_block_bytes", [](Executor& executor) { return executor.kv().shape().block_bytes(); });
  m.def("make_executor", &make_executor, nb::arg("program"), nb::kw_only(), nb::arg("num_layers"),
        nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("kv_type"), nb::arg("num_blocks"),
        nb::arg("max_batched_tokens"));
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native core: packed weights, recorded programs, executors.";
  m.def("supported_tables", &supported_names, "Names of the kernel tables this machine runs, best first.");
  m.def(
      "can_pack",
      [](int32_t format, int32_t cols) { return packed_panel_bytes(static_cast<WeightFormat>(format), cols) != 0; },
      nb::arg("format"), nb::arg("cols"), "Whether rows of this ggml type and length are multiplied as they are.");
  m.def(
      "packed_bytes",
      [](int32_t format, int64_t rows, int32_t cols) {
        const size_t panels = static_cast<size_t>((rows + kPanelRows - 1) / kPanelRows);
        return panels * packed_panel_bytes(static_cast<WeightFormat>(format), cols);
      },
      nb::arg("format"), nb::arg("rows"), nb::arg("cols"), "Bytes of a packed matrix, 0 if it cannot be packed.");
  m.attr("PACKED_LAYOUT") = kPackedLayout;
  m.attr("FILE_BLOCK") = kFileBlock;
  nb::class_<Runtime>(m, "Runtime")
      .def(nb::new_(&make_runtime), nb::arg("num_threads"), nb::arg("table"), nb::arg("activation_terms") = 1)
      .def_prop_ro("table", [](const Runtime& r) { return std::string(r.table->name); })
      .def_prop_ro("num_threads", [](const Runtime& r) { return r.pool.size(); })
      .def_prop_ro("weight_bytes", [](const Runtime& r) { return r.weights.used_bytes(); })
      .def("add_matrix", &add_matrix, nb::arg("format"), nb::arg("rows"), nb::arg("cols"), nb::arg("bytes"))
      .def("add_vector", &add_vector, nb::arg("values"))
      .def("pack", &pack, nb::arg("format"), nb::arg("rows"), nb::arg("cols"), nb::arg("bytes"))
      .def("checksums", &checksums, nb::arg("bytes"))
      .def("load_region", &load_region, nb::arg("fd"), nb::arg("offset"), nb::arg("bytes"), nb::arg("checksums"),
           nb::kw_only(), nb::arg("is_mapped"))
      .def("adopt_matrix", &adopt_matrix, nb::arg("format"), nb::arg("rows"), nb::arg("cols"), nb::arg("region"),
           nb::arg("offset"))
      .def("adopt_vector", &adopt_vector, nb::arg("size"), nb::arg("region"), nb::arg("offset"));
  bind_limits(m);
  bind_program(m);
  bind_executor(m);
}
