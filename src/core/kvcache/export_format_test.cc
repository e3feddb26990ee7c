#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/hash.h"
#include "core/kvcache/export_format.h"

namespace penstock::kvcache {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

BlockKey key(std::uint8_t number) {
  BlockKey out;
  out.bytes.fill(number);
  return out;
}

ExportRoot a_root() {
  return {key(1), "tenant:a", "nano engine 1", {64, {100, 200}, {50}, 128}};
}

BlockInfo a_block(std::uint32_t depth, KvGroup group, const std::string& payload) {
  BlockInfo info{{key(static_cast<std::uint8_t>(10 + depth)), group},
                 key(static_cast<std::uint8_t>(9 + depth)),
                 key(1),
                 depth,
                 1,
                 77,
                 {}};
  const std::string_view all = payload;
  info.slices.push_back({3, checksum64(all.substr(0, 3))});
  info.slices.push_back({static_cast<std::uint32_t>(all.size()) - 3, checksum64(all.substr(3))});
  return info;
}

std::string a_file() {
  ExportWriter writer;
  std::string out;
  writer.head({key(7), {"default", "agent"}}, out);
  writer.root(a_root(), out);
  writer.block(a_block(0, KvGroup::kHistory, "payload 0"), out);
  out += "payload 0";
  writer.block(a_block(0, KvGroup::kWindow, "window"), out);
  out += "window";
  writer.block(a_block(1, KvGroup::kHistory, "payload 1"), out);
  out += "payload 1";
  writer.end(out);
  return out;
}

// The first error; nothing when the file is whole.
std::optional<Error> fault_of(std::span<const std::byte> file) {
  ExportParser parser;
  while (!parser.ended()) {
    const auto step = parser.next(file.subspan(parser.offset()));
    if (!step) return step.error();
    if (!step->item) return Error{ErrorCode::kDataLoss, "short", {}, {}};
  }
  return std::nullopt;
}

TEST_CASE("what was written is parsed, given as few bytes as it asks for") {
  const std::string file = a_file();
  ExportParser parser;
  std::vector<ExportItem> items;
  std::size_t given = 0;
  while (!parser.ended()) {
    const std::size_t left = file.size() - parser.offset();
    REQUIRE(given <= left);
    const auto step = parser.next(bytes_of(file).subspan(parser.offset(), given));
    REQUIRE(step);
    if (!step->item) {
      CHECK(step->bytes > given);
      given = step->bytes;
      continue;
    }
    items.push_back(*step->item);
    given = 0;
  }
  CHECK(parser.offset() == file.size());
  REQUIRE(items.size() == 6);
  const auto& head = std::get<ExportHead>(items[0]);
  CHECK(head.key_check == key(7));
  CHECK(head.classes == std::vector<std::string>{"default", "agent"});
  const auto& root = std::get<ExportRoot>(items[1]);
  CHECK(root.root == key(1));
  CHECK(root.scope == a_root().scope);
  CHECK(root.build == a_root().build);
  CHECK(root.layout == a_root().layout);
  const auto& window = std::get<ExportBlock>(items[3]);
  CHECK(window.info.name == BlockName{key(10), KvGroup::kWindow});
  const auto& last = std::get<ExportBlock>(items[4]);
  const BlockInfo wanted = a_block(1, KvGroup::kHistory, "payload 1");
  CHECK(last.info.name == wanted.name);
  CHECK(last.info.parent == wanted.parent);
  CHECK(last.info.root == wanted.root);
  CHECK(last.info.depth == 1);
  CHECK(last.info.ttl_class == 1);
  CHECK(last.info.tenant == 77);
  CHECK(last.info.slices == wanted.slices);
  CHECK(std::string(reinterpret_cast<const char*>(last.payload.data()), last.payload.size()) ==
        "payload 1");
  CHECK(std::get<ExportTotals>(items[5]) == ExportTotals{1, 3, 24});
}

TEST_CASE("every flipped bit and every cut is found") {
  const std::string file = a_file();
  CHECK_FALSE(fault_of(bytes_of(file)));
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string damaged = file;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    CAPTURE(bit);
    CHECK(fault_of(bytes_of(damaged)));
  }
  for (std::size_t bytes = 0; bytes < file.size(); ++bytes)
    CHECK(fault_of(bytes_of(file).first(bytes)));
}

TEST_CASE("items that are missing, exchanged or of other files are found") {
  ExportWriter writer;
  std::string head;
  std::string root;
  std::string end;
  writer.head({key(7), {}}, head);
  writer.root(a_root(), root);
  writer.end(end);
  CHECK_FALSE(fault_of(bytes_of(head + root + end)));
  CHECK(fault_of(bytes_of(head + end)));
  CHECK(fault_of(bytes_of(head + root + root + end)));
  CHECK(fault_of(bytes_of(root + end)));
  CHECK(fault_of(bytes_of(head + head + root + end)));
  CHECK(fault_of(bytes_of(std::string(100, '\0')))->code == ErrorCode::kInvalidArgument);
  const auto late = fault_of(bytes_of(head + root + "garbage and more of it, of no use"));
  REQUIRE(late);
  CHECK(late->message.find(std::to_string(head.size() + root.size())) != std::string::npos);
}

}  // namespace
}  // namespace penstock::kvcache
