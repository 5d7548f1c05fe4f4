// Python face of the SentencePiece tokenizer: octavo.tokenization._spm. Texts are passed as UTF-8 bytes, so that the
// caller decides what a lone surrogate means.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "tokenization/spm.h"

namespace nb = nanobind;
using namespace octavo::tokenization;

namespace {

std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// UTF-8 of a token text; bytes that were not UTF-8 in the file arrive as escaped surrogates and are given back.
// `keeper` owns what is no part of the text object.
std::string_view token_text(nb::handle text, nb::object& keeper) {
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) return {utf8, static_cast<std::size_t>(size)};
  PyErr_Clear();
  PyObject* bytes = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape");
  if (bytes == nullptr) throw nb::python_error();
  keeper = nb::steal(bytes);
  return view(nb::borrow<nb::bytes>(keeper));
}

using Scores = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Types = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void build(SpmModel* self, const nb::list& tokens, const Scores& scores, const Types& types, bool add_space_prefix,
           std::int32_t unknown_id) {
  const std::size_t num_tokens = tokens.size();
  if (scores.shape(0) < num_tokens || types.shape(0) < num_tokens) {
    throw nb::value_error("fewer scores or types than tokens");
  }
  SpmModel model(num_tokens, add_space_prefix, unknown_id);
  for (std::size_t i = 0; i < num_tokens; ++i) {
    nb::object keeper;
    model.add_token(token_text(tokens[i], keeper), scores.data()[i], static_cast<TokenType>(types.data()[i]));
  }
  model.finish();
  new (self) SpmModel(std::move(model));
}

std::vector<std::int32_t> encode(const SpmModel& self, const nb::bytes& text, const SpecialMatcher& specials,
                                 bool parse_special, const nb::bytes& mark) {
  const std::string_view plain = view(text);
  const std::string_view mark_text = view(mark);
  nb::gil_scoped_release release;
  return self.encode(plain, specials, parse_special, mark_text);
}

// Special tokens as int, plain text between them as str.
nb::list split(const SpecialMatcher& self, const nb::bytes& text, bool parse_special, const nb::bytes& mark) {
  CleanText clean;
  std::vector<Fragment> fragments;
  const std::string_view marked = view(text);
  const std::string_view mark_text = view(mark);
  {
    nb::gil_scoped_release release;
    clean = remove_marks(marked, mark_text);
    fragments = self.split(clean.text, parse_special, clean.barriers);
  }
  nb::list parts;
  for (const Fragment& fragment : fragments) {
    if (fragment.id >= 0) {
      parts.append(fragment.id);
    } else {
      parts.append(nb::str(clean.text.data() + fragment.begin, fragment.end - fragment.begin));
    }
  }
  return parts;
}

}  // namespace

NB_MODULE(_spm, m) {
  // A tokenizer may live until the interpreter ends, when nothing is freed any more: that is no leak to report to a user.
  nb::set_leak_warnings(false);
  m.doc() = "SentencePiece-style tokenizer and special-token matcher";

  nb::class_<SpecialMatcher>(m, "SpecialMatcher")
      .def(nb::init<>())
      .def(
          "add",
          [](SpecialMatcher& self, const nb::bytes& text, std::int32_t id, bool always, std::uint8_t strip) {
            self.add(view(text), id, always, strip);
          },
          nb::arg("text"), nb::arg("token_id"), nb::arg("always"), nb::arg("strip"))
      .def("split", &split, nb::arg("text"), nb::arg("parse_special"), nb::arg("mark"));

  nb::class_<SpmModel>(m, "SpmModel")
      .def("__init__", &build, nb::arg("tokens"), nb::arg("scores"), nb::arg("types"), nb::arg("add_space_prefix"),
           nb::arg("unknown_id"))
      .def("encode", &encode, nb::arg("text"), nb::arg("specials"), nb::arg("parse_special"), nb::arg("mark"))
      .def(
          "token_bytes",
          [](const SpmModel& self, std::int32_t id) {
            const std::string text = self.token_bytes(id);
            return nb::bytes(text.data(), text.size());
          },
          nb::arg("token_id"));
}
