#include "core/grammar/text_automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/grammar/pattern.h"

namespace penstock::grammar {
namespace {

// Drops states from which nothing is accepted, and merges adjacent edges.
TextAutomaton trimmed(TextAutomaton automaton) {
  auto& states = automaton.states;
  std::vector<std::vector<std::uint32_t>> sources(states.size());
  std::vector<std::uint32_t> queue;
  std::vector<bool> live(states.size(), false);
  for (std::uint32_t s = 0; s < states.size(); ++s) {
    for (const auto& edge : states[s].edges)
      sources[edge.target].push_back(s);
    if (states[s].accepts) {
      live[s] = true;
      queue.push_back(s);
    }
  }
  while (!queue.empty()) {
    const std::uint32_t s = queue.back();
    queue.pop_back();
    for (const std::uint32_t source : sources[s]) {
      if (live[source]) continue;
      live[source] = true;
      queue.push_back(source);
    }
  }
  if (states.empty() || !live[0]) return {};
  std::vector<std::uint32_t> renamed(states.size(), 0);
  TextAutomaton out;
  for (std::uint32_t s = 0; s < states.size(); ++s) {
    if (!live[s]) continue;
    renamed[s] = static_cast<std::uint32_t>(out.states.size());
    out.states.push_back(std::move(states[s]));
  }
  for (auto& state : out.states) {
    std::vector<TextAutomaton::Edge> edges;
    for (const auto& edge : state.edges) {
      if (!live[edge.target]) continue;
      const std::uint32_t target = renamed[edge.target];
      if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == edge.first) {
        edges.back().last = edge.last;
      } else {
        edges.push_back({edge.first, edge.last, target});
      }
    }
    state.edges = std::move(edges);
  }
  return out;
}

class Determiniser {
 public:
  Determiniser(const Nfa& nfa, std::uint32_t entry, std::uint32_t exit, const GrammarLimits& limits)
      : nfa_(nfa), entry_(entry), exit_(exit), limits_(limits), seen_(nfa.states.size(), 0) {}

  // `open`: what follows a match doesn't matter, so it is as good as any text.
  Result<TextAutomaton> run(bool open) {
    add(closure({entry_}, true, false), open);
    std::uint64_t work = 0;
    for (std::uint32_t at = 0; at < out_.states.size(); ++at) {
      const std::vector<std::uint32_t> set = sets_[at];
      work += set.size();
      if (out_.states.size() > limits_.text_states_max || work > limits_.work_max)
        return too_large(limits_);
      expand(at, set, open);
    }
    return trimmed(std::move(out_));
  }

 private:
  std::vector<std::uint32_t> closure(std::vector<std::uint32_t> set, bool begin, bool end) {
    ++round_;
    std::vector<std::uint32_t> out;
    for (const std::uint32_t s : set)
      seen_[s] = round_;
    while (!set.empty()) {
      const std::uint32_t s = set.back();
      set.pop_back();
      out.push_back(s);
      for (const auto& [passage, target] : nfa_.states[s].empties) {
        if (passage == Passage::kAtBegin && !begin) continue;
        if (passage == Passage::kAtEnd && !end) continue;
        if (seen_[target] == round_) continue;
        seen_[target] = round_;
        set.push_back(target);
      }
    }
    std::ranges::sort(out);
    return out;
  }

  std::uint32_t add(std::vector<std::uint32_t> set, bool open) {
    if (open && std::ranges::binary_search(set, exit_)) set = {exit_};
    const auto id = static_cast<std::uint32_t>(out_.states.size());
    // The first state alone stands at the beginning, so no other may be taken for it.
    const bool first = out_.states.empty();
    if (!first) {
      const auto [found, fresh] = ids_.try_emplace(set, id);
      if (!fresh) return found->second;
    }
    TextAutomaton::State state;
    state.accepts = std::ranges::binary_search(closure(set, first, true), exit_);
    out_.states.push_back(std::move(state));
    sets_.push_back(std::move(set));
    return id;
  }

  void expand(std::uint32_t at, const std::vector<std::uint32_t>& set, bool open) {
    if (open && set.size() == 1 && set[0] == exit_) {
      for (const auto& [first, last] : all_code_points())
        out_.states[at].edges.push_back({first, last, at});
      return;
    }
    struct Part {
      char32_t first, last;
      std::uint32_t target;
    };
    std::vector<Part> parts;
    std::vector<char32_t> cuts;
    for (const std::uint32_t s : set) {
      for (const auto& [first, last] : nfa_.states[s].set) {
        parts.push_back({first, last, nfa_.states[s].target});
        cuts.push_back(first);
        cuts.push_back(last + 1);
      }
    }
    std::ranges::sort(cuts);
    cuts.erase(std::ranges::unique(cuts).begin(), cuts.end());
    std::ranges::sort(parts, {}, &Part::first);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::vector<std::uint32_t> targets;
      for (const Part& part : parts) {
        if (part.first > cuts[i]) break;
        if (part.last >= cuts[i]) targets.push_back(part.target);
      }
      if (targets.empty()) continue;
      std::ranges::sort(targets);
      targets.erase(std::ranges::unique(targets).begin(), targets.end());
      const std::uint32_t target = add(closure(std::move(targets), false, false), open);
      out_.states[at].edges.push_back({cuts[i], cuts[i + 1] - 1, target});
    }
  }

  const Nfa& nfa_;
  std::uint32_t entry_;
  std::uint32_t exit_;
  const GrammarLimits& limits_;
  std::vector<std::uint32_t> seen_;
  std::uint32_t round_ = 0;
  TextAutomaton out_;
  std::vector<std::vector<std::uint32_t>> sets_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> ids_;
};

}  // namespace

bool TextAutomaton::accepts(std::string_view text) const {
  if (states.empty()) return false;
  std::uint32_t at = 0;
  while (!text.empty()) {
    const char32_t c = take_code_point(text);
    const auto& edges = states[at].edges;
    const auto edge =
        std::ranges::find_if(edges, [&](const Edge& e) { return c >= e.first && c <= e.last; });
    if (edge == edges.end()) return false;
    at = edge->target;
  }
  return states[at].accepts;
}

Result<TextAutomaton> pattern_automaton(std::string_view pattern, PatternMatch match,
                                        const GrammarLimits& limits) {
  if (!is_valid_utf8(pattern))
    return fail(ErrorCode::kInvalidArgument, "the pattern isn't valid UTF-8");
  TRY(ParsedPattern parsed, parse_pattern(pattern, limits));
  auto& [nfa, all_entry, all_exit] = parsed;
  if (match == PatternMatch::kSearch) {
    // Any text before: the entry of the pattern is met after each character.
    const auto before = static_cast<std::uint32_t>(nfa.states.size());
    const auto entry = before + 1;
    nfa.states.resize(nfa.states.size() + 2);
    nfa.states[before].set = all_code_points();
    nfa.states[before].target = before;
    nfa.states[before].empties.push_back({Passage::kFree, all_entry});
    nfa.states[entry].empties.push_back({Passage::kFree, before});
    nfa.states[entry].empties.push_back({Passage::kFree, all_entry});
    all_entry = entry;
  }
  return Determiniser(nfa, all_entry, all_exit, limits).run(match == PatternMatch::kSearch);
}

Result<TextAutomaton> intersect(const TextAutomaton& a, const TextAutomaton& b,
                                const GrammarLimits& limits) {
  if (a.states.empty() || b.states.empty()) return TextAutomaton{};
  TextAutomaton out;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> ids;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  const auto add = [&](std::uint32_t x, std::uint32_t y) {
    const auto [found, fresh] =
        ids.try_emplace({x, y}, static_cast<std::uint32_t>(out.states.size()));
    if (fresh) {
      out.states.push_back({{}, a.states[x].accepts && b.states[y].accepts});
      pairs.emplace_back(x, y);
    }
    return found->second;
  };
  add(0, 0);
  for (std::uint32_t at = 0; at < out.states.size(); ++at) {
    if (out.states.size() > limits.text_states_max) return too_large(limits);
    const auto [x, y] = pairs[at];
    auto left = a.states[x].edges.begin();
    auto right = b.states[y].edges.begin();
    while (left != a.states[x].edges.end() && right != b.states[y].edges.end()) {
      const char32_t first = std::max(left->first, right->first);
      const char32_t last = std::min(left->last, right->last);
      if (first <= last) {
        const std::uint32_t target = add(left->target, right->target);
        out.states[at].edges.push_back({first, last, target});
      }
      if (left->last < right->last) {
        ++left;
      } else {
        ++right;
      }
    }
  }
  return trimmed(std::move(out));
}

Result<TextAutomaton> length_automaton(std::uint32_t min, std::uint32_t max,
                                       const GrammarLimits& limits) {
  const bool bounded = max != 0xFFFFFFFF;
  const std::uint32_t last = bounded ? max : min;
  if (last >= limits.text_states_max) return too_large(limits);
  TextAutomaton out;
  if (min > max) return out;
  for (std::uint32_t n = 0; n <= last; ++n) {
    TextAutomaton::State state;
    state.accepts = n >= min;
    if (n < last || !bounded) {
      for (const auto& [first, end] : all_code_points())
        state.edges.push_back({first, end, std::min(n + 1, last)});
    }
    out.states.push_back(std::move(state));
  }
  return out;
}

namespace {

// Fills the gaps between a state's sorted edges with edges to `target`.
void fill_gaps(TextAutomaton::State& state, std::uint32_t target) {
  CodePointSet taken;
  for (const auto& edge : state.edges)
    taken.push_back({edge.first, edge.last});
  for (const auto& [first, last] : complement(normalized(std::move(taken))))
    state.edges.push_back({first, last, target});
  std::ranges::sort(state.edges, {}, &TextAutomaton::Edge::first);
}

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> out;
  while (!text.empty())
    out.push_back(take_code_point(text));
  return out;
}

}  // namespace

TextAutomaton all_but(const std::vector<std::string>& texts) {
  TextAutomaton out;
  out.states.push_back({{}, true});
  for (const std::string& text : texts) {
    std::uint32_t at = 0;
    for (const char32_t c : code_points(text)) {
      auto& edges = out.states[at].edges;
      const auto found = std::ranges::find(edges, c, &TextAutomaton::Edge::first);
      if (found != edges.end()) {
        at = found->target;
        continue;
      }
      const auto fresh = static_cast<std::uint32_t>(out.states.size());
      edges.push_back({c, c, fresh});
      out.states.push_back({{}, true});
      at = fresh;
    }
    out.states[at].accepts = false;
  }
  const auto rest = static_cast<std::uint32_t>(out.states.size());
  out.states.push_back({{}, true});
  for (auto& state : out.states)
    fill_gaps(state, rest);
  return out;
}

TextAutomaton texts_without(std::string_view literal) {
  const std::vector<char32_t> word = code_points(literal);
  std::vector<std::uint32_t> border(word.size() + 1, 0);  // of the first n: its longest border
  for (std::uint32_t n = 1, k = 0; n < word.size(); ++n) {
    while (k > 0 && word[n] != word[k])
      k = border[k];
    if (word[n] == word[k]) ++k;
    border[n + 1] = k;
  }
  TextAutomaton out;
  for (std::uint32_t n = 0; n < word.size(); ++n) {
    TextAutomaton::State state{{}, true};
    CodePointSet known;
    for (std::uint32_t k = n;; k = border[k]) {
      const char32_t c = word[k];
      const bool shadowed =
          std::ranges::any_of(known, [&](const CodePointRange& r) { return r.first == c; });
      if (!shadowed) {
        known.push_back({c, c});
        state.edges.push_back({c, c, k + 1});
      }
      if (k == 0) break;
    }
    fill_gaps(state, 0);
    std::erase_if(state.edges, [&](const auto& edge) { return edge.target == word.size(); });
    out.states.push_back(std::move(state));
  }
  return trimmed(std::move(out));
}

TextAutomaton multiples_automaton(std::uint32_t step, std::uint32_t decimals) {
  // 0 start, 1 after "-", then for each residue: after a leading 0 (only residue 0), whole digits,
  // the point, and 1 to `decimals` digits after it.
  const std::uint32_t groups = decimals == 0 ? 2 : 3 + decimals;
  const auto id = [&](std::uint32_t group, std::uint32_t residue) {
    return 2 + group * step + residue;
  };
  std::vector<std::uint64_t> scale(decimals + 1, 1 % step);
  for (std::uint32_t i = 1; i <= decimals; ++i)
    scale[i] = scale[i - 1] * 10 % step;
  TextAutomaton out;
  out.states.resize(2 + std::size_t{groups} * step);
  const auto digit = [&](std::uint32_t from, char32_t d, std::uint32_t to) {
    out.states[from].edges.push_back({'0' + d, '0' + d, to});
  };
  const auto next = [&](std::uint64_t residue, char32_t d) {
    return static_cast<std::uint32_t>((residue * 10 + d) % step);
  };
  out.states[0].edges.push_back({'-', '-', 1});
  for (const std::uint32_t from : {0U, 1U}) {
    digit(from, 0, id(0, 0));
    for (char32_t d = 1; d <= 9; ++d)
      digit(from, d, id(1, d % step));
  }
  for (std::uint32_t r = 0; r < step; ++r) {
    const bool whole = r * scale[decimals] % step == 0;
    out.states[id(0, r)].accepts = r == 0;
    out.states[id(1, r)].accepts = whole;
    if (decimals > 0) {
      out.states[id(0, r)].edges.push_back({'.', '.', id(2, r)});
      out.states[id(1, r)].edges.push_back({'.', '.', id(2, r)});
    }
    for (char32_t d = 0; d <= 9; ++d) {
      digit(id(1, r), d, id(1, next(r, d)));
      for (std::uint32_t f = 0; f < decimals; ++f)
        digit(id(2 + f, r), d, id(3 + f, next(r, d)));
    }
    for (std::uint32_t f = 1; f <= decimals; ++f)
      out.states[id(2 + f, r)].accepts = r * scale[decimals - f] % step == 0;
  }
  return trimmed(std::move(out));
}

}  // namespace penstock::grammar
