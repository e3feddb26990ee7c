// Files, whole: read with a limit, write atomically, secrets, temporary folders.
//
// Everything here is for configuration, keys, tests and tools: small files, blocking calls. Bulk
// data (weights, KV) has its own code.
//
// Errors: kIo with the path and the system's reason, kNotFound when the file is not there,
// kPayloadTooLarge over the limit, kPermissionDenied for a secret that others can read.
// Concurrency: callable from any thread; not from a shard (they block).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"

namespace penstock {

// The whole file. Fails when it is larger than `limit`, also when it grows while being read.
Result<std::string> read_file(const std::string& path, Bytes limit);

// Like read_file, for keys: the file must be a regular one that only its owner can read or write.
Result<std::string> read_secret_file(const std::string& path, Bytes limit);

// Readers see the old content or the new one, never a part: writes PATH.tmp-XXXXXX, syncs, renames.
// `mode` as in chmod.
Status write_file_atomically(const std::string& path, std::string_view content,
                             unsigned mode = 0644);

// Makes the folder and its parents; `mode` for those that are made. A folder that exists is fine.
Status make_directories(const std::string& path, unsigned mode = 0755);

// A folder that is deleted with everything in it at the end of its scope.
class TemporaryDirectory {
 public:
  static Result<TemporaryDirectory> make(std::string_view prefix);
  TemporaryDirectory(TemporaryDirectory&& other) noexcept;
  TemporaryDirectory& operator=(TemporaryDirectory&& other) noexcept;
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// An advisory lock on a file, held until the object or the process ends.
class FileLock {
 public:
  // Fails with kConflict, naming the holder's process id, when another process has it.
  static Result<FileLock> acquire(const std::string& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace penstock
