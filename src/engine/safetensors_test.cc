#include "engine/safetensors.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/testing/random_checkpoint.h"
#include "engine/weights.h"

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

std::string entry(const char* dtype, const char* shape, const char* offsets) {
  return std::string("{\"dtype\":\"") + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void spill(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

TEST_CASE("an honest index is read") {
  const auto index = parse_tensor_index(
      "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" + entry("F32", "[2,3]", "[0,24]") + ",\"s\":" +
          entry("BF16", "[]", "[24,26]") + ",\"e\":" + entry("F16", "[0,5]", "[26,26]") + "}",
      26);
  REQUIRE(index);
  CHECK(index->size() == 3);
  CHECK(index->at("a").shape == std::vector<std::uint64_t>{2, 3});
  CHECK(index->at("s").end == 26);
}

TEST_CASE("a lying index is refused with the reason") {
  struct Case {
    std::string header;
    std::uint64_t data_bytes;
    const char* reason;
  };
  const std::string a = entry("F32", "[2]", "[0,8]");
  for (const Case& c : {
           Case{"", 0, "not valid JSON"},
           {"[1]", 0, "one JSON object"},
           {"{\"a\":3}", 0, "not an object"},
           {"{\"a\":" + a + "}", 7, "do not lie within"},
           {"{\"a\":" + a + "}", 9, "follow the last"},
           {"{\"a\":" + a + ",\"b\":" + a + "}", 8, "overlaps"},
           {"{\"a\":" + a + ",\"b\":" + entry("F32", "[1]", "[12,16]") + "}", 16, "hole"},
           {"{\"a\":" + entry("F32", "[3]", "[0,8]") + "}", 8, "needs 12 bytes"},
           {"{\"a\":" + entry("Q4", "[2]", "[0,8]") + "}", 8, "unknown dtype"},
           {"{\"a\":" + entry("F32", "[2]", "[8,0]") + "}", 8, "do not lie within"},
           {"{\"a\":" + entry("F32", "[2]", "[-1,8]") + "}", 8, "natural number"},
           {"{\"a\":" + entry("F32", "[2.5]", "[0,8]") + "}", 8, "natural number"},
           {"{\"a\":" + entry("F32", "[4611686018427387904,4]", "[0,8]") + "}", 8, "overflows"},
           {"{\"a\":" + entry("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") + "}", 8, "at most 8"},
           {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets"},
           {"{\"a\":" + a + ",\"a\":" + a + "}", 8, "twice"},
           {std::string(50, '['), 8, "not valid JSON"},
       }) {
    CAPTURE(c.header);
    const auto index = parse_tensor_index(c.header, c.data_bytes);
    REQUIRE(!index);
    CHECK(index.error().message.find(c.reason) != std::string::npos);
  }
}

TEST_CASE("a file cut at any of many places, or with a wrong header length, is refused") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/model.safetensors";
  REQUIRE(write_checkpoint(folder.path(), {}, 5));
  const auto config = load_config(folder.path());
  REQUIRE(config);
  REQUIRE(load_weights(folder.path(), *config));
  const std::string whole = slurp(path);
  for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 40) {
    spill(path, std::string_view(whole).substr(0, size));
    CHECK(!load_weights(folder.path(), *config));
  }
  spill(path, whole + "x");
  CHECK(!load_weights(folder.path(), *config));
  std::string lying = whole;
  for (const int byte : {0, 3, 7}) {
    lying[static_cast<std::size_t>(byte)] = '\x7f';
    spill(path, lying);
    CHECK(!load_weights(folder.path(), *config));
  }
  std::filesystem::remove(path);
  CHECK(load_weights(folder.path(), *config).error().code == ErrorCode::kIo);
  std::filesystem::create_directory(path);
  CHECK(load_weights(folder.path(), *config).error().code == ErrorCode::kIo);
}

TEST_CASE("a tensor that is missing, misshapen or unknown is named") {
  const TemporaryFolder folder;
  REQUIRE(write_checkpoint(folder.path(), {}, 5));
  CheckpointShape other;
  const auto refuse = [&](CheckpointShape shape, const char* name) {
    const auto config = parse_config(config_json(shape));
    REQUIRE(config);
    const auto weights = load_weights(folder.path(), *config);
    REQUIRE(!weights);
    CHECK(weights.error().field == name);
  };
  other.layers = 4;
  refuse(other, "model.layers.3.input_layernorm.weight");
  other = {};
  other.hidden_size = 48;
  refuse(other, "model.embed_tokens.weight");
  other = {};
  other.heads = 2;
  refuse(other, "model.layers.0.self_attn.q_proj.weight");
  other = {};
  other.experts = 5;
  refuse(other, "model.layers.1.mlp.gate.weight");
  other = {};
  other.shared_experts = 0;
  refuse(other, "model.layers.1.mlp.shared_experts.down_proj.weight");
  other = {};
  other.q_lora_rank = 8;
  refuse(other, "model.layers.0.self_attn.q_a_proj.weight");
}

}  // namespace penstock::engine
