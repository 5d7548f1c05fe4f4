#include "tokenization/spm.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <queue>
#include <stdexcept>

namespace octavo::tokenization {

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581 stands for a space inside token texts
// Escaping triples a text of spaces; symbols are counted in 31 bits and their offsets in 32.
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  if (byte < 0xC0) return 1;  // a stray continuation byte stands alone
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

// Value of "<0xXX>", or -1.
int parse_byte_name(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return -1;
  int value = -1;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  return error == std::errc{} && end == text.data() + 5 ? value : -1;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t at; (at = text.find(from, begin)) != std::string_view::npos; begin = at + from.size()) {
    out.append(text, begin, at - begin).append(to);
  }
  return out.append(text, begin);
}

}  // namespace

CleanText remove_marks(std::string_view text, std::string_view mark) {
  CleanText clean;
  clean.text.reserve(text.size());
  std::size_t begin = 0;
  while (!mark.empty()) {
    const std::size_t at = text.find(mark, begin);
    if (at == std::string_view::npos) break;
    clean.text.append(text, begin, at - begin);
    clean.barriers.push_back(clean.text.size());
    begin = at + mark.size();
  }
  clean.text.append(text, begin);
  return clean;
}

// --- SpecialMatcher ---------------------------------------------------------------------------------------------

void SpecialMatcher::add(std::string_view text, std::int32_t id, bool always, std::uint8_t strip) {
  if (text.empty()) return;
  const auto shorter = [](const Group& group, std::size_t length) { return group.length > length; };
  auto group = std::lower_bound(groups_.begin(), groups_.end(), text.size(), shorter);
  if (group == groups_.end() || group->length != text.size()) {
    group = groups_.insert(group, Group{});
    group->length = text.size();
  }
  group->any_always |= always;
  group->first_bytes.set(static_cast<unsigned char>(text.front()));
  group->entries.try_emplace(std::string(text), Entry{id, always, strip});
}

const SpecialMatcher::Entry* SpecialMatcher::match(const Group& group, std::string_view text, std::size_t at,
                                                   bool parse_special,
                                                   std::span<const std::size_t> barriers) const {
  const auto found = group.entries.find(text.substr(at, group.length));
  if (found == group.entries.end()) return nullptr;
  const Entry& entry = found->second;
  if (entry.always) return &entry;
  if (!parse_special) return nullptr;
  const auto barrier = std::upper_bound(barriers.begin(), barriers.end(), at);
  return barrier != barriers.end() && *barrier < at + group.length ? nullptr : &entry;
}

// Appends the parts of `fragment` to `out`; returns false, with nothing appended, if no token of the group is in it.
bool SpecialMatcher::split_fragment(const Group& group, std::string_view text, Fragment fragment, bool parse_special,
                                    std::span<const std::size_t> barriers, std::vector<Fragment>& out) const {
  bool any = false;
  std::size_t begin = fragment.begin;
  std::size_t at = begin;
  while (at + group.length <= fragment.end) {
    if (!group.first_bytes.test(static_cast<unsigned char>(text[at]))) {
      ++at;
      continue;
    }
    const Entry* entry = match(group, text, at, parse_special, barriers);
    if (entry == nullptr) {
      ++at;
      continue;
    }
    any = true;
    std::size_t left_end = at;
    if (entry->strip & strip_left) {
      while (left_end > begin && is_ascii_space(text[left_end - 1])) --left_end;
    }
    if (left_end > begin) out.push_back({-1, begin, left_end});
    out.push_back({entry->id, at, at + group.length});
    begin = at + group.length;
    if (entry->strip & strip_right) {
      while (begin < fragment.end && is_ascii_space(text[begin])) ++begin;
    }
    at = begin;
  }
  if (any && begin < fragment.end) out.push_back({-1, begin, fragment.end});
  return any;
}

std::vector<Fragment> SpecialMatcher::split(std::string_view text, bool parse_special,
                                            std::span<const std::size_t> barriers) const {
  std::vector<Fragment> fragments;
  if (text.empty()) return fragments;
  fragments.push_back({-1, 0, text.size()});
  ByteSet present;
  for (const char c : text) present.set(static_cast<unsigned char>(c));
  std::vector<Fragment> parts;
  for (const Group& group : groups_) {
    if (!parse_special && !group.any_always) continue;
    if (group.length > text.size() || (group.first_bytes & present).none()) continue;
    bool changed = false;
    parts.clear();
    for (const Fragment& fragment : fragments) {
      if (fragment.id < 0 && split_fragment(group, text, fragment, parse_special, barriers, parts)) {
        changed = true;
      } else {
        parts.push_back(fragment);
      }
    }
    if (changed) fragments.swap(parts);
  }
  return fragments;
}

// --- TokenTable -------------------------------------------------------------------------------------------------

TokenTable::TokenTable(std::size_t expected) : slots_(16) {
  ends_.reserve(expected);
  std::size_t size = slots_.size();
  while (size < 2 * expected) size *= 2;
  slots_.resize(size);
}

std::size_t TokenTable::slot_of(std::string_view text) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = std::hash<std::string_view>{}(text) & mask;
  while (slots_[slot] != 0 && this->text(slots_[slot] - 1) != text) slot = (slot + 1) & mask;
  return slot;
}

void TokenTable::add(std::string_view text, bool findable) {
  if (block_.size() + text.size() > std::numeric_limits<std::uint32_t>::max() ||
      ends_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw std::length_error("vocabulary too large");
  }
  block_.append(text);
  ends_.push_back(static_cast<std::uint32_t>(block_.size()));
  if (!findable || text.empty()) return;
  if (2 * (num_findable_ + 1) > slots_.size()) grow();
  const std::size_t slot = slot_of(text);
  if (slots_[slot] != 0) return;
  slots_[slot] = static_cast<std::int32_t>(ends_.size());
  ++num_findable_;
  max_length_ = std::max(max_length_, text.size());
}

void TokenTable::grow() {
  std::vector<std::int32_t> old(2 * slots_.size());
  old.swap(slots_);
  for (const std::int32_t entry : old) {
    if (entry != 0) slots_[slot_of(text(entry - 1))] = entry;
  }
}

void TokenTable::shrink_to_fit() { block_.shrink_to_fit(); }

std::int32_t TokenTable::find(std::string_view text) const {
  if (text.size() > max_length_) return -1;
  return slots_[slot_of(text)] - 1;
}

std::string_view TokenTable::text(std::int32_t id) const {
  const std::size_t begin = id == 0 ? 0 : ends_[static_cast<std::size_t>(id) - 1];
  return std::string_view(block_).substr(begin, ends_[static_cast<std::size_t>(id)] - begin);
}

// --- SpmModel ---------------------------------------------------------------------------------------------------

SpmModel::SpmModel(std::size_t num_tokens, bool add_space_prefix, std::int32_t unknown_id)
    : tokens_(num_tokens), add_space_prefix_(add_space_prefix), unknown_id_(unknown_id) {
  scores_.reserve(num_tokens);
  types_.reserve(num_tokens);
  byte_ids_.fill(-1);
}

void SpmModel::add_token(std::string_view text, float score, TokenType type) {
  // Text must never merge into a control token, nor the letters "<0x41>" into a byte.
  const bool findable = type != TokenType::control && type != TokenType::unknown && type != TokenType::byte;
  tokens_.add(text, findable);
  scores_.push_back(std::isnan(score) ? -std::numeric_limits<float>::infinity() : score);
  types_.push_back(type);
}

void SpmModel::finish() {
  for (std::size_t id = 0; id < types_.size(); ++id) {
    const int value = parse_byte_name(tokens_.text(static_cast<std::int32_t>(id)));
    if (value < 0 || types_[id] == TokenType::control || types_[id] == TokenType::unknown) continue;
    std::int32_t& known = byte_ids_[static_cast<std::size_t>(value)];
    const bool is_better = types_[id] == TokenType::byte && known >= 0 &&
                           types_[static_cast<std::size_t>(known)] != TokenType::byte;
    if (known < 0 || is_better) known = static_cast<std::int32_t>(id);
  }
  for (std::size_t value = 0; value < byte_ids_.size(); ++value) {
    const char byte = static_cast<char>(value);
    if (byte_ids_[value] < 0) byte_ids_[value] = tokens_.find(std::string_view(&byte, 1));
  }
  tokens_.shrink_to_fit();
}

std::vector<std::int32_t> SpmModel::encode(std::string_view text, const SpecialMatcher& specials, bool parse_special,
                                           std::string_view mark) const {
  if (text.size() > kMaxTextBytes) throw std::length_error("text too long to tokenize: more than 1 GiB");
  CleanText clean;
  std::string_view plain = text;
  if (!mark.empty() && text.find(mark) != std::string_view::npos) {
    clean = remove_marks(text, mark);
    plain = clean.text;
  }
  std::vector<std::int32_t> ids;
  bool is_after_special = true;
  for (const Fragment& fragment : specials.split(plain, parse_special, clean.barriers)) {
    if (fragment.id >= 0) {
      ids.push_back(fragment.id);
      is_after_special = true;
      continue;
    }
    std::string escaped(add_space_prefix_ && is_after_special ? kSpaceMark : std::string_view{});
    escaped += replace_all(plain.substr(fragment.begin, fragment.end - fragment.begin), " ", kSpaceMark);
    merge(escaped, ids);
    is_after_special = false;
  }
  return ids;
}

// Joins neighbours as long as some pair is a token: best score first, of equal scores the leftmost.
void SpmModel::merge(std::string_view text, std::vector<std::int32_t>& out) const {
  struct Symbol {
    std::int32_t previous;
    std::int32_t next;
    std::uint32_t begin;
    std::uint32_t length;  // 0: joined to its left neighbour
  };
  struct Pair {
    float score;
    std::int32_t left;
    std::int32_t right;
    std::uint32_t length;  // of both; another sum later means that one of them has changed
    bool operator<(const Pair& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };

  std::vector<Symbol> symbols;
  symbols.reserve(text.size());
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t length = std::min(utf8_length(text[begin]), text.size() - begin);
    const auto idx = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({idx - 1, idx + 1, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(length)});
    begin += length;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::priority_queue<Pair> queue;
  const auto try_pair = [&](std::int32_t left, std::int32_t right) {
    if (left < 0 || right < 0) return;
    const Symbol& first = symbols[static_cast<std::size_t>(left)];
    const std::uint32_t length = first.length + symbols[static_cast<std::size_t>(right)].length;
    const std::int32_t id = tokens_.find(text.substr(first.begin, length));
    if (id >= 0) queue.push({scores_[static_cast<std::size_t>(id)], left, right, length});
  };
  for (std::size_t i = 1; i < symbols.size(); ++i) {
    try_pair(static_cast<std::int32_t>(i) - 1, static_cast<std::int32_t>(i));
  }
  while (!queue.empty()) {
    const Pair pair = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(pair.left)];
    Symbol& right = symbols[static_cast<std::size_t>(pair.right)];
    if (left.length == 0 || right.length == 0 || left.length + right.length != pair.length) continue;
    left.length = pair.length;
    right.length = 0;
    left.next = right.next;
    if (right.next >= 0) symbols[static_cast<std::size_t>(right.next)].previous = pair.left;
    try_pair(left.previous, pair.left);
    try_pair(pair.left, left.next);
  }
  for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    const Symbol& symbol = symbols[static_cast<std::size_t>(i)];
    spell_out(text.substr(symbol.begin, symbol.length), out);
  }
}

void SpmModel::spell_out(std::string_view symbol, std::vector<std::int32_t>& out) const {
  const std::int32_t id = tokens_.find(symbol);
  if (id >= 0) {
    out.push_back(id);
    return;
  }
  const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (std::all_of(symbol.begin(), symbol.end(), [&](char c) { return byte_id(c) >= 0; })) {
    for (const char c : symbol) out.push_back(byte_id(c));
  } else if (unknown_id_ >= 0) {
    out.push_back(unknown_id_);
  }
}

std::string SpmModel::token_bytes(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= size()) throw std::out_of_range("no such token");
  const std::string_view text = tokens_.text(id);
  switch (types_[static_cast<std::size_t>(id)]) {
    case TokenType::control:
    case TokenType::unknown:
    case TokenType::user_defined:
      return std::string(text);
    case TokenType::byte:
      if (const int value = parse_byte_name(text); value >= 0) return std::string(1, static_cast<char>(value));
      return std::string(text);
    default:
      return replace_all(text, kSpaceMark, " ");
  }
}

}  // namespace octavo::tokenization
