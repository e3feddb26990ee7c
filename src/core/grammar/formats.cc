#include "core/grammar/formats.h"

#include <fmt/format.h>

#include <vector>

namespace penstock::grammar {
namespace {

using namespace std::string_literals;

struct Format {
  std::string_view name;
  std::string pattern;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = [] {
    const std::string leap_year =
        "([0-9][0-9](0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)";
    const std::string date =
        "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
        "02-(0[1-9]|1[0-9]|2[0-8]))|"s +
        leap_year + "-02-29)";
    const std::string hour_minute = "([01][0-9]|2[0-3]):[0-5][0-9]";
    const std::string fraction = "(\\.[0-9]{1,12})?";
    const std::string time = "(" + hour_minute + ":[0-5][0-9]" + fraction + "([Zz]|[+-]" +
                             hour_minute + ")|23:59:60" + fraction + "([Zz]|[+-]00:00))";
    const std::string octet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    const std::string ipv4 = octet + "(\\." + octet + "){3}";
    const std::string h16 = "[0-9A-Fa-f]{1,4}";
    const std::string last32 = "(" + h16 + ":" + h16 + "|" + ipv4 + ")";
    std::string ipv6 = "(" + fmt::format("({}:){{6}}", h16) + last32;
    // "::" stands for at least one group: `after` groups behind it, up to `before` in front.
    for (int after = 5; after >= 0; --after) {
      const int before = 5 - after;
      const std::string front =
          before == 0 ? "" : fmt::format("(({0}:){{0,{1}}}{0})?", h16, before - 1);
      ipv6 += fmt::format("|{}::({}:){{{}}}{}", front, h16, after, last32);
    }
    ipv6 += fmt::format("|(({0}:){{0,5}}{0})?::{0}|(({0}:){{0,6}}{0})?::)", h16);
    const std::string label_end = "([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    const std::string label = "[A-Za-z0-9]" + label_end;
    const std::string short_label = "[A-Za-z0-9]([A-Za-z0-9-]{0,22}[A-Za-z0-9])?";
    const std::string hostname = "(" + label + "(\\." + label + "){0,2}(\\.[A-Za-z0-9]" +
                                 "([A-Za-z0-9-]{0,58}[A-Za-z0-9])?)?|" + short_label + "(\\." +
                                 short_label + "){0,9})";
    const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-]+";
    const std::string email = "(" + atom + "(\\." + atom + ")*|\"([ !#-\\[\\]-~]|\\\\[ -~])*\")@(" +
                              hostname + "|\\[(" + ipv4 + "|IPv6:" + ipv6 + ")\\])";
    const std::string hex = "[0-9A-Fa-f]";
    const std::string pchar = "([A-Za-z0-9._~!$&'()*+,;=:@\\-]|%" + hex + hex + ")";
    const std::string name_char = "([A-Za-z0-9._~!$&'()*+,;=\\-]|%" + hex + hex + ")";
    const std::string user_char = "([A-Za-z0-9._~!$&'()*+,;=:\\-]|%" + hex + hex + ")";
    const std::string authority = "(" + user_char + "*@)?(\\[(" + ipv6 + "|[vV]" + hex +
                                  "+\\.[A-Za-z0-9._~!$&'()*+,;=:\\-]+)\\]|" + name_char +
                                  "*)(:[0-9]*)?";
    const std::string suffix = "(\\?(" + pchar + "|[/?])*)?(#(" + pchar + "|[/?])*)?";
    const std::string absolute = "/(" + pchar + "+(/" + pchar + "*)*)?";
    const std::string uri = "[A-Za-z][A-Za-z0-9+.\\-]*:(//" + authority + "(/" + pchar + "*)*|" +
                            absolute + "|" + pchar + "+(/" + pchar + "*)*|)" + suffix;
    const std::string number = "[0-9]{1,9}";
    const std::string day = number + "D";
    const std::string month = number + "M(" + day + ")?";
    const std::string minute = number + "M(" + number + "S)?";
    const std::string clock = "T(" + number + "H(" + minute + ")?|" + minute + "|" + number + "S)";
    const std::string duration = "P(" + number + "W|(" + number + "Y(" + month + ")?|" + month +
                                 "|" + day + ")(" + clock + ")?|" + clock + ")";
    return std::vector<Format>{
        {"date", date},
        {"time", time},
        {"date-time", date + "[Tt]" + time},
        {"duration", duration},
        {"email", email},
        {"hostname", hostname},
        {"ipv4", ipv4},
        {"ipv6", ipv6},
        {"uri", uri},
        {"uuid", fmt::format("{0}{{8}}(-{0}{{4}}){{3}}-{0}{{12}}", hex)},
        {"json-pointer", "(/([^/~]|~[01])*)*"},
    };
  }();
  return all;
}

}  // namespace

std::optional<std::string> format_pattern(std::string_view format) {
  for (const Format& known : formats()) {
    if (known.name == format) return known.pattern;
  }
  return std::nullopt;
}

std::string format_names() {
  std::string names;
  for (const Format& known : formats())
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

}  // namespace penstock::grammar
