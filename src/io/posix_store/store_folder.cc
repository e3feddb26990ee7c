#include "io/posix_store/store_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"

namespace penstock::posix_store {
namespace {

constexpr std::size_t kNameMax = 128;
constexpr std::string_view kFolders[] = {"extents", "small", "manifests", "leases", "tmp", "trash"};

std::string shard_of(const StoreName& name) {
  const auto hash = checksum64(std::as_bytes(std::span(name.name)));
  return fmt::format("{}/{:03x}", name.pool == StorePool::kExtents ? "extents" : "small",
                     hash & 0xFFF);
}
std::string path_of(const StoreName& name) {
  return shard_of(name) + "/" + name.name;
}
std::string path_of(ManifestId id) {
  return fmt::format("manifests/{}/{}", id.ttl_class, id.slice);
}

Descriptor open_in(int root, const std::string& path, int flags) {
  return Descriptor(::openat(root, path.c_str(), flags | O_CLOEXEC, 0660));
}

// Errors of a write may come with a close only (NFS): that of a copy, whose answer can be had.
int close_now(Descriptor& file) {
  const Descriptor mine = std::exchange(file, Descriptor());
  const int copy = ::dup(mine.get());
  if (copy < 0) return errno;
  return ::close(copy) == 0 ? 0 : errno;
}

// Calls `visit` with the names in a folder; 0 or errno.
int list(int root, const std::string& path, const std::function<void(const std::string&)>& visit) {
  const int fd = ::openat(root, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  DIR* const folder = ::fdopendir(fd);
  if (folder == nullptr) {
    const int error = errno;
    ::close(fd);
    return error;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') visit(entry->d_name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(folder);
  return error;
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Makes the folders that a path of ours begins with.
int make_parents(int root, const std::string& path) {
  for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1))
    if (::mkdirat(root, path.substr(0, end).c_str(), 0770) != 0 && errno != EEXIST) return errno;
  return 0;
}

std::int64_t wall_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

// "OWNER MILLISECONDS" of a lease file; nullopt: there is none. One that is not whole (its owner
// died while it wrote it) holds for a minute.
struct Held {
  std::string content;
  std::string owner;
  std::int64_t until_ms = 0;
};
int read_lease(int root, const std::string& path, std::optional<Held>& held) {
  const Descriptor file = open_in(root, path, O_RDONLY);
  if (file.get() < 0) return errno == ENOENT ? 0 : errno;
  char text[256];
  const ssize_t got = ::pread(file.get(), text, sizeof text, 0);
  struct stat state{};
  if (got < 0 || ::fstat(file.get(), &state) != 0) return errno;
  held.emplace();
  held->content.assign(text, static_cast<std::size_t>(got));
  held->until_ms = (static_cast<std::int64_t>(state.st_mtim.tv_sec) + 60) * 1000;
  const std::size_t space = held->content.find(' ');
  if (space == std::string::npos || held->content.back() != '\n') return 0;
  const auto until =
      number(std::string_view(held->content).substr(space + 1, held->content.size() - space - 2));
  if (!until) return 0;
  held->owner = held->content.substr(0, space);
  held->until_ms = static_cast<std::int64_t>(*until);
  return 0;
}

// The names in whole lines of a piece of a manifest; returns where the first line that is not whole
// begins.
std::size_t parse_names(std::string_view text, std::size_t names_max,
                        std::vector<StoreName>& names) {
  std::size_t begin = 0;
  while (names.size() < names_max) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.size() < 3 || (line[0] != 'e' && line[0] != 's') || line[1] != ' ') continue;
    if (!is_sound_name(line.substr(2))) continue;
    names.push_back(
        {line[0] == 'e' ? StorePool::kExtents : StorePool::kSmall, std::string(line.substr(2))});
  }
  return begin;
}

}  // namespace

bool is_sound_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && name[0] != '.' &&
         std::ranges::all_of(name, [](char c) { return c > ' ' && c <= '~' && c != '/'; });
}

StoreFolder::StoreFolder(std::string path, std::string writer, std::unique_ptr<FileData> data,
                         Duration leftovers_after)
    : path_(std::move(path)),
      writer_(std::move(writer)),
      data_(std::move(data)),
      leftovers_after_(leftovers_after) {}

int StoreFolder::open_root(Root& root) {
  const std::lock_guard lock(mutex_);
  if (root_ == nullptr) {
    if (::mkdir(path_.c_str(), 0770) != 0 && errno != EEXIST) return errno;
    Descriptor opened(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened.get() < 0) return errno;
    for (const std::string_view folder : kFolders)
      if (::mkdirat(opened.get(), std::string(folder).c_str(), 0770) != 0 && errno != EEXIST)
        return errno;
    root_ = std::make_shared<const Descriptor>(std::move(opened));
  }
  root = root_;
  return 0;
}

MissReason StoreFolder::attempt(std::string_view what,
                                const std::function<int(int root)>& operation) {
  for (int tries = 0;; ++tries) {
    Root root;
    const int opening = open_root(root);
    const int error = opening != 0 ? opening : operation(root->get());
    const bool is_fine = error == 0 || (error == ENOENT && opening == 0);
    const std::lock_guard lock(mutex_);
    if ((error == ESTALE || error == ENOTCONN) && tries == 0) {
      if (root_ == root) root_ = nullptr;
      continue;
    }
    if (is_fine) {
      trouble_.clear();
      return error == 0 ? MissReason::kNone : MissReason::kNeverStored;
    }
    trouble_ = fmt::format("{} in {}: {}", what, path_, std::generic_category().message(error));
    return error == ENOSPC || error == EDQUOT ? MissReason::kEvictedShare : MissReason::kIoError;
  }
}

std::string StoreFolder::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

std::string StoreFolder::unique(std::string_view folder) {
  return fmt::format("{}/{}-{}", folder, writer_, ++last_number_);
}

MissReason StoreFolder::put(const StoreName& name, std::span<const std::byte> bytes,
                            TimeSlice slice) {
  return attempt("writing an object", [&](int root) {
    const std::string path = path_of(name);
    const std::string temporary = unique("tmp");
    Descriptor file = open_in(root, temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (file.get() < 0) return errno;
    struct stat there{};
    if (::fstatat(root, path.c_str(), &there, 0) == 0)
      slice = std::max(slice, static_cast<TimeSlice>(there.st_mtim.tv_sec));
    const timespec noted{static_cast<time_t>(slice), 0};
    const timespec times[2] = {noted, noted};
    int error = data_->write(file.get(), bytes);
    if (error == 0 && ::futimens(file.get(), times) != 0) error = errno;
    if (const int closing = close_now(file); error == 0) error = closing;
    if (error == 0 && ::renameat(root, temporary.c_str(), root, path.c_str()) != 0) error = errno;
    if (error == ENOENT) {
      error = make_parents(root, path);
      if (error == 0 && ::renameat(root, temporary.c_str(), root, path.c_str()) != 0) error = errno;
    }
    if (error != 0) ::unlinkat(root, temporary.c_str(), 0);
    return error == ENOENT ? EIO : error;
  });
}

MissReason StoreFolder::get(const StoreName& name, std::uint64_t offset, std::span<std::byte> to,
                            std::size_t& read) {
  return attempt("reading an object", [&](int root) {
    const Descriptor file = open_in(root, path_of(name), O_RDONLY);
    if (file.get() < 0) return errno;
    const std::ptrdiff_t got = data_->read(file.get(), to, offset);
    if (got < 0) return static_cast<int>(-got);
    read = static_cast<std::size_t>(got);
    return 0;
  });
}

MissReason StoreFolder::look_up(std::span<const StoreName> names, std::span<StoreFound> found) {
  return attempt("looking an object up", [&](int root) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      struct stat state{};
      found[i] = {};
      if (::fstatat(root, path_of(names[i]).c_str(), &state, 0) == 0) {
        found[i] = {static_cast<std::uint64_t>(state.st_size),
                    static_cast<TimeSlice>(state.st_mtim.tv_sec)};
      } else if (errno != ENOENT) {
        return errno;
      }
    }
    return 0;
  });
}

MissReason StoreFolder::touch(const StoreName& name, TimeSlice slice) {
  return attempt("touching an object", [&](int root) {
    const std::string path = path_of(name);
    struct stat state{};
    if (::fstatat(root, path.c_str(), &state, 0) != 0) return errno;
    if (static_cast<TimeSlice>(state.st_mtim.tv_sec) >= slice) return 0;
    const timespec noted{static_cast<time_t>(slice), 0};
    const timespec times[2] = {noted, noted};
    return ::utimensat(root, path.c_str(), times, 0) == 0 ? 0 : errno;
  });
}

MissReason StoreFolder::remove(const StoreName& name, TimeSlice slice_max, bool& removed,
                               std::uint64_t& bytes) {
  removed = false;
  return attempt("removing an object", [&](int root) {
    const std::string path = path_of(name);
    struct stat state{};
    if (::fstatat(root, path.c_str(), &state, 0) != 0) return errno;
    if (static_cast<TimeSlice>(state.st_mtim.tv_sec) > slice_max) return 0;
    const std::string away = unique("trash");
    if (::renameat(root, path.c_str(), root, away.c_str()) != 0) return errno;
    if (::fstatat(root, away.c_str(), &state, 0) != 0) return errno;
    const bool was_used = static_cast<TimeSlice>(state.st_mtim.tv_sec) > slice_max;
    // A newer copy may have come meanwhile: then this one is not needed.
    if (was_used && ::linkat(root, away.c_str(), root, path.c_str(), 0) != 0 && errno != EEXIST)
      return errno;
    if (::unlinkat(root, away.c_str(), 0) != 0) return errno;
    removed = !was_used;
    bytes = static_cast<std::uint64_t>(state.st_size);
    return 0;
  });
}

MissReason StoreFolder::add_to_manifest(ManifestId id, std::span<const StoreName> names) {
  std::string lines = "\n";
  for (const StoreName& name : names) {
    lines += name.pool == StorePool::kExtents ? "e " : "s ";
    lines += name.name;
    lines += '\n';
  }
  return attempt("writing a manifest", [&](int root) {
    const std::string path = path_of(id) + "/" + writer_;
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND;
    Descriptor file = open_in(root, path, kFlags);
    if (file.get() < 0 && errno == ENOENT) {
      if (const int error = make_parents(root, path); error != 0) return error;
      file = open_in(root, path, kFlags);
    }
    if (file.get() < 0) return errno == ENOENT ? EIO : errno;
    const ssize_t put = ::write(file.get(), lines.data(), lines.size());
    if (put < 0) return errno;
    if (static_cast<std::size_t>(put) != lines.size()) return ENOSPC;
    return close_now(file);
  });
}

MissReason StoreFolder::read_manifest(ManifestId id, const std::string& from, std::size_t names_max,
                                      ManifestPage& page) {
  const std::size_t colon = from.rfind(':');
  const std::string first = from.substr(0, std::min(colon, from.size()));
  std::uint64_t offset =
      colon == std::string::npos ? 0 : number(std::string_view(from).substr(colon + 1)).value_or(0);
  const MissReason reason = attempt("reading a manifest", [&](int root) {
    page = {};
    std::vector<std::string> files;
    const int error = list(root, path_of(id), [&](const std::string& name) {
      if (name >= first) files.push_back(name);
    });
    if (error != 0) return error;
    std::ranges::sort(files);
    std::string text(std::max<std::size_t>(names_max * 64, 4 * kNameMax), '\0');
    std::uint64_t at = offset;
    for (const std::string& name : files) {
      if (name != first) at = 0;
      const Descriptor file = open_in(root, path_of(id) + "/" + name, O_RDONLY);
      if (file.get() < 0) return errno;
      for (;;) {
        const ssize_t got = ::pread(file.get(), text.data(), text.size(), static_cast<off_t>(at));
        if (got < 0) return errno;
        const std::size_t used = parse_names(
            std::string_view(text).substr(0, static_cast<std::size_t>(got)), names_max, page.names);
        at += used;
        if (page.names.size() >= names_max) {
          page.next = fmt::format("{}:{}", name, at);
          return 0;
        }
        if (used == 0) break;
      }
    }
    return 0;
  });
  // Nobody has written to it: it is empty.
  return reason == MissReason::kNeverStored ? MissReason::kNone : reason;
}

MissReason StoreFolder::list_manifests(std::vector<ManifestId>& ids) {
  return attempt("listing manifests", [&](int root) {
    ids.clear();
    std::vector<std::string> classes;
    if (const int error =
            list(root, "manifests", [&](const std::string& name) { classes.push_back(name); });
        error != 0)
      return error;
    for (const std::string& one : classes) {
      const auto ttl_class = number(one);
      if (!ttl_class || *ttl_class > UINT8_MAX) continue;
      const int error = list(root, "manifests/" + one, [&](const std::string& name) {
        if (const auto slice = number(name))
          ids.push_back({static_cast<TtlClass>(*ttl_class), *slice});
      });
      if (error != 0) return error;
    }
    std::ranges::sort(ids);
    const time_t before =
        static_cast<time_t>(wall_ms() / 1000 - leftovers_after_ / std::chrono::seconds(1));
    for (const std::string folder : {"tmp", "trash"}) {
      const int error = list(root, folder, [&](const std::string& name) {
        struct stat state{};
        const std::string path = folder + "/" + name;
        if (::fstatat(root, path.c_str(), &state, 0) == 0 && state.st_ctim.tv_sec <= before)
          ::unlinkat(root, path.c_str(), 0);
      });
      if (error != 0) return error;
    }
    return 0;
  });
}

MissReason StoreFolder::drop_manifest(ManifestId id) {
  return attempt("dropping a manifest", [&](int root) {
    std::vector<std::string> files;
    const std::string folder = path_of(id);
    const int error =
        list(root, folder, [&](const std::string& name) { files.push_back(folder + "/" + name); });
    if (error == ENOENT) return 0;
    if (error != 0) return error;
    for (const std::string& file : files)
      if (::unlinkat(root, file.c_str(), 0) != 0 && errno != ENOENT) return errno;
    if (::unlinkat(root, folder.c_str(), AT_REMOVEDIR) == 0) return 0;
    // Somebody adds to it again: it is dealt with next time.
    return errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST ? 0 : errno;
  });
}

int StoreFolder::write_new(int root, const std::string& path, std::string_view text) {
  Descriptor file = open_in(root, path, O_WRONLY | O_CREAT | O_EXCL);
  if (file.get() < 0) return errno;
  int error = data_->write(file.get(), std::as_bytes(std::span(text)));
  if (const int closing = close_now(file); error == 0) error = closing;
  if (error != 0) ::unlinkat(root, path.c_str(), 0);
  return error;
}

// Renames an expired lease away; 0: it is away, or another was faster.
int StoreFolder::claim_expired(int root, const std::string& lease, const std::string& content) {
  const std::string away = unique("trash");
  if (::renameat(root, lease.c_str(), root, away.c_str()) != 0) return errno == ENOENT ? 0 : errno;
  std::optional<Held> moved;
  if (const int error = read_lease(root, away, moved); error != 0) return error;
  // It is not the one that had run out: another had taken it over by then.
  if (moved && moved->content != content) ::linkat(root, away.c_str(), root, lease.c_str(), 0);
  return ::unlinkat(root, away.c_str(), 0) == 0 ? 0 : errno;
}

MissReason StoreFolder::take_lease(const std::string& what, const std::string& owner,
                                   Duration duration, bool& taken) {
  taken = false;
  return attempt("taking a lease", [&](int root) {
    const std::string path = "leases/" + what;
    const std::int64_t now = wall_ms();
    const auto until =
        now + std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
    const std::string content = fmt::format("{} {}\n", owner, until);
    for (int tries = 0; tries < 2; ++tries) {
      std::optional<Held> held;
      if (const int error = read_lease(root, path, held); error != 0) return error;
      if (held && held->owner == owner) {
        const std::string temporary = unique("tmp");
        if (const int error = write_new(root, temporary, content); error != 0) return error;
        if (::renameat(root, temporary.c_str(), root, path.c_str()) != 0) return errno;
        taken = true;
        return 0;
      }
      if (held && held->until_ms > now) return 0;
      if (held)
        if (const int error = claim_expired(root, path, held->content); error != 0) return error;
      const int error = write_new(root, path, content);
      if (error != EEXIST) {
        taken = error == 0;
        return error;
      }
    }
    return 0;
  });
}

MissReason StoreFolder::give_back_lease(const std::string& what, const std::string& owner) {
  return attempt("giving a lease back", [&](int root) {
    const std::string path = "leases/" + what;
    std::optional<Held> held;
    if (const int error = read_lease(root, path, held); error != 0) return error;
    if (!held || held->owner != owner) return 0;
    return ::unlinkat(root, path.c_str(), 0) == 0 || errno == ENOENT ? 0 : errno;
  });
}

MissReason StoreFolder::use(StoreUse& use) {
  return attempt("asking for free space", [&](int root) {
    struct statvfs state{};
    if (::fstatvfs(root, &state) != 0) return errno;
    const std::uint64_t unit = state.f_frsize;
    use.bytes_total = state.f_blocks * unit;
    use.bytes_used = (state.f_blocks - state.f_bfree) * unit;
    use.objects = state.f_files - state.f_ffree;
    use.full = state.f_bavail < state.f_blocks / 100;
    return 0;
  });
}

}  // namespace penstock::posix_store
