// Benchmarks: every claim of speed is a command, `penstock bench NAME [--json]`.
//
// A bench measures its baseline in the same run and reports figures; `ratio` > 1 is better than the
// baseline and `aim` is the ratio aimed at. For an absolute limit baseline_name is "limit" and
// ratio is limit/value for "at most", value/limit for "at least", aim 1. A baseline that is not
// installed makes its figure `skipped` with the reason; it never makes up a number.
//
// The list of benches is explicit, in bench/registry.cc.
// Concurrency: a bench owns the process while it runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock {
class BlockStore;
}

namespace penstock::bench {

struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  std::string baseline_name;
  double baseline = 0;
  double ratio = 0;
  double aim = 0;
  std::string skipped;  // why there is no number; empty when there is one
};

struct Options {
  std::string model_dir;      // checkpoint folder, for benches that need one
  std::string reference_dir;  // node folder of the reference tokenizer and vocabularies
  bool quick = false;         // shorter, noisier
  std::string kv_tier;        // `kv`: "all", or only that tier: "host", "peer", "disk", "cluster"
  std::string cluster_store;  // as of --cluster-store; empty: a temporary folder
  std::function<Result<std::unique_ptr<BlockStore>>(const std::string&)> open_store;
  // Of the `rados` command: the same cluster, user, pool and name space.
  std::function<Result<std::vector<std::string>>(const std::string&)> rados_arguments;
};

struct Bench {
  const char* name;
  const char* summary;
  Result<std::vector<Figure>> (*run)(const Options&);
};

// All benches, in the order they are listed.
const std::vector<Bench>& all();

// value/baseline figure where more is better.
Figure more_is_better(std::string name, double value, std::string unit, std::string baseline_name,
                      double baseline, double aim);
// An absolute limit: at most / at least.
Figure at_most(std::string name, double value, std::string unit, double limit);
Figure at_least(std::string name, double value, std::string unit, double limit);
Figure skipped(std::string name, std::string unit, std::string baseline_name, double aim,
               std::string why);

// The upper one of the two middle values when there are two. Precondition: not empty.
double median(std::vector<double> values);

// Benches, one per file.
Result<std::vector<Figure>> run_engine(const Options&);
Result<std::vector<Figure>> run_tokenizer(const Options&);
Result<std::vector<Figure>> run_control(const Options&);
Result<std::vector<Figure>> run_kv(const Options&);
Result<std::vector<Figure>> run_transfer(const Options&);
Result<std::vector<Figure>> run_experts(const Options&);
Result<std::vector<Figure>> run_routing(const Options&);
Result<std::vector<Figure>> run_pd(const Options&);
Result<std::vector<Figure>> run_gateway(const Options&);
Result<std::vector<Figure>> run_proxy(const Options&);
Result<std::vector<Figure>> run_grammar(const Options&);
Result<std::vector<Figure>> run_index(const Options&);

}  // namespace penstock::bench
