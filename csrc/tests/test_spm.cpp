// Merging, byte fallback and special-token matching of tokenization/spm.h.
#undef NDEBUG
#include "tokenization/spm.h"

#include <cassert>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

using namespace octavo::tokenization;
using Ids = std::vector<std::int32_t>;

namespace {

constexpr std::string_view kMark = "\xEF\xB7\x90";  // U+FDD0

// 0 <unk>, 1 <s>, 2..257 bytes, then letters and merges.
struct Fixture {
  SpmModel model{300, false, 0};
  SpecialMatcher specials;

  explicit Fixture(bool prefix = false) : model(300, prefix, 0) {
    model.add_token("<unk>", 0, TokenType::unknown);
    model.add_token("<s>", 0, TokenType::control);
    const char* hex = "0123456789ABCDEF";
    for (int b = 0; b < 256; ++b) {
      model.add_token(std::string("<0x") + hex[b >> 4] + hex[b & 15] + ">", 0, TokenType::byte);
    }
    for (const char* text : {"a", "b", "\xE2\x96\x81", "<", "s", ">"}) model.add_token(text, -10, TokenType::normal);
    model.add_token("ab", -3, TokenType::normal);                  // 264
    model.add_token("ba", -2, TokenType::normal);                  // 265
    model.add_token("aa", -4, TokenType::normal);                  // 266
    model.add_token("<s", -1, TokenType::normal);                  // 267
    model.add_token("\xE2\x96\x81" "a", -5, TokenType::normal);    // 268
    model.add_token("\n\n", 0, TokenType::user_defined);           // 269
    model.finish();
    specials.add("<s>", 1, false, strip_none);
    specials.add("\n\n", 269, true, strip_none);
  }
  Ids encode(std::string_view text, bool parse = false, std::string_view mark = {}) const {
    return model.encode(text, specials, parse, mark);
  }
};

void merges_best_score_first_then_leftmost() {
  const Fixture f;
  assert((f.encode("ab") == Ids{264}));
  assert((f.encode("aba") == Ids{258, 265}));  // ba scores higher than ab
  assert((f.encode("aaa") == Ids{266, 258}));  // ties go to the left
  assert(f.encode("").empty());
}

void unknown_characters_become_bytes() {
  const Fixture f;
  assert((f.encode("\xC3\xA9") == Ids{2 + 0xC3, 2 + 0xA9}));
  assert(f.model.token_bytes(2 + 0xC3) == "\xC3");
  assert((f.encode("\x80z") == Ids{2 + 0x80, 2 + 'z'}));     // stray continuation byte
  assert((f.encode("\xF0\x9F") == Ids{2 + 0xF0, 2 + 0x9F}));  // cut short
}

void text_never_merges_into_a_control_token() {
  const Fixture f;
  assert((f.encode("<s>") == Ids{267, 263}));
  assert((f.encode("<s>", true) == Ids{1}));
}

void a_mark_breaks_control_tokens_and_nothing_else() {
  const Fixture f;
  const std::string mark(kMark);
  assert((f.encode("<" + mark + "s>", true, kMark) == Ids{267, 263}));
  assert((f.encode("a" + mark + "b", true, kMark) == Ids{264}));
  assert((f.encode("\n" + mark + "\n", true, kMark) == Ids{269}));
  assert((f.encode(mark + "<s>" + mark, true, kMark) == Ids{1}));  // marks beside it are not in it
}

void spaces_are_escaped_and_prefixed() {
  const Fixture plain;
  assert((plain.encode("a a") == Ids{258, 268}));
  const Fixture prefixed(true);
  assert((prefixed.encode("a") == Ids{268}));
  assert((prefixed.encode("<s>a", true) == Ids{1, 268}));
  assert((prefixed.encode("b\n\na") == Ids{260, 259, 269, 268}));
  assert(plain.model.token_bytes(268) == " a");
}

void specials_match_longest_first_and_strip() {
  SpecialMatcher matcher;
  matcher.add("ab", 1, true, strip_none);
  matcher.add("bcd", 2, true, strip_left | strip_right);
  matcher.add("", 3, true, strip_none);
  const auto parts = matcher.split("a \tbcd \n ab", false, {});
  assert(parts.size() == 3);
  assert(parts[0].id == -1 && parts[0].end == 1);
  assert(parts[1].id == 2);
  assert(parts[2].id == 1);
  assert(matcher.split("", false, {}).empty());
  assert(matcher.split("abcd", false, {}).front().id == -1);  // the longer one takes the b
}

void odd_vocabularies_are_survived() {
  SpmModel bare(0, false, -1);
  bare.finish();
  assert(bare.encode("a b", {}, true, {}).empty());
  SpmModel odd(4, false, 0);
  odd.add_token("?", std::numeric_limits<float>::quiet_NaN(), TokenType::unknown);
  odd.add_token("", 0, TokenType::normal);
  odd.add_token("x", std::numeric_limits<float>::quiet_NaN(), TokenType::normal);
  odd.add_token("x", 1, static_cast<TokenType>(77));
  for (int i = 0; i < 100; ++i) odd.add_token("t" + std::to_string(i), 0, TokenType::normal);  // more than announced
  odd.finish();
  assert((odd.encode("xy", {}, false, {}) == Ids{2, 0}));  // no byte tokens: unknown
  for (const std::int32_t id : {-1, 104, 1 << 30}) {
    bool is_caught = false;
    try {
      (void)odd.token_bytes(id);
    } catch (const std::out_of_range&) {
      is_caught = true;
    }
    assert(is_caught);
  }
}

void long_runs_stay_fast() {
  const Fixture f;
  assert(f.encode(std::string(1 << 18, 'a')).size() == 1 << 17);
  assert(f.encode(std::string(1 << 18, ' ')).size() == 1 << 18);
  assert(f.encode(std::string(1 << 18, '\n')).size() == 1 << 17);
}

}  // namespace

int main() {
  merges_best_score_first_then_leftmost();
  unknown_characters_become_bytes();
  text_never_merges_into_a_control_token();
  a_mark_breaks_control_tokens_and_nothing_else();
  spaces_are_escaped_and_prefixed();
  specials_match_longest_first_and_strip();
  odd_vocabularies_are_survived();
  long_runs_stay_fast();
}
