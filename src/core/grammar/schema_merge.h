// SchemaMerger: what a JSON Schema says, before any grammar: references, several schemas that hold
// at once, types, values, whether two schemas exclude each other.
//
// Several schemas at once ($ref beside other words, allOf, words beside anyOf) become one, word by
// word; where that has no equal in words it is refused by name.
//
// Invariants: a reference leads into the same document. Errors: as json_schema.h. Concurrency:
// pure; views into the document. Source: json-schema.org/draft/2020-12, sections 8.2.3, 10.2.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::grammar {

struct SchemaTypes {
  bool null = false;
  bool boolean = false;
  bool integer = false;  // also set when `number` is
  bool number = false;
  bool string = false;
  bool array = false;
  bool object = false;

  bool allow(const boost::json::value& value) const;
};

class SchemaMerger {
 public:
  explicit SchemaMerger(const boost::json::value& document) : document_(document) {}

  struct Target {
    const boost::json::value* schema;
    std::string path;  // "#/$defs/a"
  };
  Result<Target> resolve(const boost::json::value& ref, const std::string& path) const;
  Result<Target> resolve_pointer(std::string_view pointer, const std::string& path) const;

  // Refuses the words that aren't supported.
  Status check_words(const boost::json::object& words, const std::string& path) const;
  // Whether any word but these restricts what is valid.
  static bool constrains(const boost::json::object& words,
                         std::initializer_list<std::string_view> but);
  static bool is_constraint(std::string_view word);

  Result<boost::json::value> with_reference(const boost::json::object& words,
                                            const std::string& path) const;
  Result<boost::json::value> with_all_of(const boost::json::object& words,
                                         const std::string& path) const;
  // Of "anyOf" or "oneOf": each with the words beside it. Those of oneOf exclude one another.
  Result<std::vector<boost::json::value>> branches(const boost::json::object& words,
                                                   std::string_view word,
                                                   const std::string& path) const;

  static Result<SchemaTypes> types_of(const boost::json::object& words, const std::string& path);
  static Result<std::vector<boost::json::value>> values_of(const boost::json::object& words,
                                                           const std::string& path);
  static Result<std::vector<std::string_view>> required(const boost::json::object& words,
                                                        const std::string& path);
  static Result<std::uint32_t> count(const boost::json::object& words, std::string_view word,
                                     std::uint32_t otherwise, const std::string& path);
  static std::unexpected<Error> wrong(const std::string& path, std::string_view why);

 private:
  Result<boost::json::value> merge(const boost::json::value& a, const boost::json::value& b,
                                   const std::string& path) const;
  Status merge_word(boost::json::object& out, std::string_view word, const boost::json::value& b,
                    const std::string& path) const;
  bool exclude(const boost::json::value& a, const boost::json::value& b, std::uint32_t depth) const;
  const boost::json::value& looked_through(const boost::json::value& schema) const;

  const boost::json::value& document_;
};

}  // namespace penstock::grammar
