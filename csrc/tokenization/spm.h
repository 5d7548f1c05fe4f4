// SentencePiece-style BPE over a scored vocabulary, and the matcher of special tokens that every tokenizer shares.
//
// All text is UTF-8. Every object is immutable once built and safe to share between threads.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace octavo::tokenization {

// Values as in the key tokenizer.ggml.token_type of a GGUF file.
enum class TokenType : std::uint8_t {
  undefined = 0,
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

// A special token may swallow the ASCII white space beside it. A bit mask.
enum Strip : std::uint8_t { strip_none = 0, strip_left = 1, strip_right = 2 };

// Part of a text: a special token (id >= 0), or plain text (id == -1) from begin to end.
struct Fragment {
  std::int32_t id = -1;
  std::size_t begin = 0;
  std::size_t end = 0;
};

// A text without its marks. `barriers` are the byte offsets where marks were, ascending: no control token may lie
// across one.
struct CleanText {
  std::string text;
  std::vector<std::size_t> barriers;
};

// Removes every occurrence of `mark`; an empty mark removes nothing.
CleanText remove_marks(std::string_view text, std::string_view mark);

// Finds special tokens in text: longer ones first, each left to right, in what longer ones left over.
class SpecialMatcher {
 public:
  // `always`: matched whether or not the caller asks for control tokens (a user-defined token). Empty texts are ignored.
  void add(std::string_view text, std::int32_t id, bool always, std::uint8_t strip);

  // Fragments in order of the text. A control token counts only if `parse_special`, and only if no barrier is inside it.
  std::vector<Fragment> split(std::string_view text, bool parse_special,
                              std::span<const std::size_t> barriers) const;

 private:
  struct Entry {
    std::int32_t id;
    bool always;
    std::uint8_t strip;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using ByteSet = std::bitset<256>;
  struct Group {  // all special tokens of one length
    std::size_t length = 0;
    bool any_always = false;
    ByteSet first_bytes;
    std::unordered_map<std::string, Entry, Hash, std::equal_to<>> entries;
  };

  const Entry* match(const Group& group, std::string_view text, std::size_t at, bool parse_special,
                     std::span<const std::size_t> barriers) const;
  bool split_fragment(const Group& group, std::string_view text, Fragment fragment, bool parse_special,
                      std::span<const std::size_t> barriers, std::vector<Fragment>& out) const;

  std::vector<Group> groups_;  // longest first
};

// Token texts in one block, found by text through an open-addressing table: 4 + 4 bytes a token beside the texts.
class TokenTable {
 public:
  explicit TokenTable(std::size_t expected);

  // Appends a token; its id is the number of tokens before it. Of equal texts the first is found.
  // `findable`: whether `find` may return it. Throws std::length_error when all texts together pass 4 GiB.
  void add(std::string_view text, bool findable);

  // Gives back the memory reserved for more texts.
  void shrink_to_fit();

  // Id of the token with this text, or -1.
  std::int32_t find(std::string_view text) const;
  std::string_view text(std::int32_t id) const;
  std::size_t size() const { return ends_.size(); }
  std::size_t max_length() const { return max_length_; }

 private:
  void grow();
  std::size_t slot_of(std::string_view text) const;

  std::string block_;
  std::vector<std::uint32_t> ends_;
  std::vector<std::int32_t> slots_;  // id + 1; 0 is free. Size is a power of two, at most half full.
  std::size_t num_findable_ = 0;
  std::size_t max_length_ = 0;
};

class SpmModel {
 public:
  // `unknown_id` stands for what has neither a token nor byte tokens; -1 leaves it out.
  SpmModel(std::size_t num_tokens, bool add_space_prefix, std::int32_t unknown_id);

  void add_token(std::string_view text, float score, TokenType type);

  // Resolves byte fallback. To be called once, after the last token.
  void finish();

  // Ids of `text`, without BOS and EOS. O(n log n). Throws std::length_error above 1 GiB of text.
  std::vector<std::int32_t> encode(std::string_view text, const SpecialMatcher& specials, bool parse_special,
                                   std::string_view mark) const;

  // Bytes that a token adds to the text; a control or unknown token gives its name. Throws std::out_of_range.
  std::string token_bytes(std::int32_t id) const;

  std::size_t size() const { return tokens_.size(); }

 private:
  void merge(std::string_view text, std::vector<std::int32_t>& out) const;
  void spell_out(std::string_view symbol, std::vector<std::int32_t>& out) const;

  TokenTable tokens_;
  std::vector<float> scores_;
  std::vector<TokenType> types_;
  std::array<std::int32_t, 256> byte_ids_{};
  bool add_space_prefix_;
  std::int32_t unknown_id_;
};

}  // namespace octavo::tokenization
