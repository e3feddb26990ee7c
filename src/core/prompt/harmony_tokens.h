// The special tokens of harmony, as they stand in the vocabulary. Source: the public format guide.
#pragma once

#include <string_view>

namespace penstock::prompt::harmony {

inline constexpr std::string_view kStart = "<|start|>";
inline constexpr std::string_view kEnd = "<|end|>";
inline constexpr std::string_view kMessage = "<|message|>";
inline constexpr std::string_view kChannel = "<|channel|>";
inline constexpr std::string_view kConstrain = "<|constrain|>";
inline constexpr std::string_view kReturn = "<|return|>";
inline constexpr std::string_view kCall = "<|call|>";

}  // namespace penstock::prompt::harmony
