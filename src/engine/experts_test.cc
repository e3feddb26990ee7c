#include "engine/experts.h"

#include <cmath>

#include <doctest/doctest.h>

namespace penstock::engine {

TEST_CASE("experts are chosen by biased score, weighted by the score alone") {
  struct Case {
    const char* name;
    std::vector<float> scores;
    std::vector<float> bias;
    std::uint32_t k, groups, kept;
    bool normalize;
    float scale;
    std::vector<std::uint32_t> ids;
    std::vector<float> weights;
  };
  const float nan = std::nanf("");
  for (const Case& c : {
           Case{"the two best, ascending",
                {.25F, .5F, .125F, .75F},
                {0, 0, 0, 0},
                2,
                1,
                1,
                false,
                1,
                {1, 3},
                {.5F, .75F}},
           {"normalised and scaled",
            {.25F, .5F, .125F, .5F},
            {0, 0, 0, 0},
            2,
            1,
            1,
            true,
            2,
            {1, 3},
            {1, 1}},
           {"bias ranks, does not weigh",
            {.25F, .5F, .125F, .75F},
            {0, 0, 1, 0},
            2,
            1,
            1,
            false,
            1,
            {2, 3},
            {.125F, .75F}},
           {"ties go to the lower id",
            {.5F, .5F, .5F, .5F},
            {0, 0, 0, 0},
            2,
            1,
            1,
            false,
            1,
            {0, 1},
            {.5F, .5F}},
           {"groups count by their two best",
            {.75F, .125F, .5F, .5F},
            {0, 0, 0, 0},
            2,
            2,
            1,
            false,
            1,
            {2, 3},
            {.5F, .5F}},
           {"equal groups: the lower one stays",
            {.5F, .5F, .5F, .5F, .5F, .5F},
            {0, 0, 0, 0, 0, 0},
            2,
            3,
            2,
            false,
            1,
            {0, 1},
            {.5F, .5F}},
           {"one expert per group",
            {.25F, .5F, .125F, .75F},
            {0, 0, 0, 0},
            1,
            4,
            2,
            false,
            1,
            {3},
            {.75F}},
           {"negative biases in a kept group",
            {.5F, .5F, .5F, .5F},
            {-9, -9, -10, -10},
            2,
            2,
            1,
            false,
            1,
            {0, 1},
            {.5F, .5F}},
           {"NaN still gives distinct ids",
            {nan, nan, .5F, nan},
            {0, 0, 0, 0},
            2,
            1,
            1,
            false,
            1,
            {0, 2},
            {nan, .5F}},
       }) {
    CAPTURE(c.name);
    ModelConfig config;
    config.experts = static_cast<std::uint32_t>(c.scores.size());
    config.experts_per_token = c.k;
    config.expert_groups = c.groups;
    config.groups_kept = c.kept;
    config.normalize_weights = c.normalize;
    config.routed_scale = c.scale;
    std::vector<float> ranks(c.scores.size());
    std::vector<std::uint32_t> ids(c.k);
    std::vector<float> weights(c.k);
    choose_experts(config, c.scores.data(), c.bias.data(), ranks.data(), ids.data(),
                   weights.data());
    CHECK(ids == c.ids);
    for (std::uint32_t i = 0; i < c.k; ++i) {
      if (std::isnan(c.weights[i])) {
        CHECK(std::isnan(weights[i]));
      } else {
        CHECK(weights[i] == c.weights[i]);
      }
    }
  }
}

}  // namespace penstock::engine
