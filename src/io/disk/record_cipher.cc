#include "io/disk/record_cipher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace penstock::disk {
namespace {

unsigned char* bytes_of(std::byte* memory) {
  return reinterpret_cast<unsigned char*>(memory);
}

// Table and payload of a record: what is encrypted.
std::span<std::byte> secret_part(const kvcache::RecordHeader& header, std::span<std::byte> record) {
  const std::size_t end = std::size_t{header.header_units()} * kvcache::kUnitBytes + header.bytes;
  return record.subspan(kvcache::kRecordFixedBytes, end - kvcache::kRecordFixedBytes);
}

}  // namespace

Status RecordCipher::initialise() {
  if (sodium_init() < 0) {
    return fail(ErrorCode::kInternal, "libsodium could not be initialised; is there no entropy?");
  }
  return {};
}

Result<RecordCipher::Key> RecordCipher::read_key_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot open the disk key file {}: {}", path, std::strerror(errno)));
  }
  std::array<char, 66> text{};
  const ssize_t got = ::read(fd, text.data(), text.size());
  struct stat status{};
  const bool known = ::fstat(fd, &status) == 0;
  ::close(fd);
  if (!known || (status.st_mode & 077) != 0) {
    return fail(ErrorCode::kPermissionDenied,
                fmt::format("the disk key file {} can be read by others; chmod 600 it", path));
  }
  Key key{};
  std::size_t length = 0;
  const bool hex =
      got >= 64 && (got == 64 || text[64] == '\n') && got <= 65 &&
      sodium_hex2bin(key.data(), key.size(), text.data(), 64, nullptr, &length, nullptr) == 0 &&
      length == key.size();
  sodium_memzero(text.data(), text.size());
  if (!hex) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the disk key file {} is not 64 hexadecimal digits; make one with "
                            "`openssl rand -hex 32`",
                            path));
  }
  return key;
}

RecordCipher::RecordCipher(const Key& key) : key_(key) {
  constexpr std::string_view kPurpose = "penstock kv segments";
  std::array<unsigned char, crypto_generichash_BYTES_MIN> digest{};
  ENSURE(crypto_generichash(digest.data(), digest.size(),
                            reinterpret_cast<const unsigned char*>(kPurpose.data()),
                            kPurpose.size(), key_.data(), key_.size()) == 0);
  std::memcpy(&id_, digest.data(), sizeof id_);
  id_ = std::max<std::uint64_t>(id_, 1);
}

RecordCipher::~RecordCipher() {
  sodium_memzero(key_.data(), key_.size());
}

std::array<std::uint8_t, 24> RecordCipher::nonce() {
  std::array<std::uint8_t, 24> nonce{};
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::uint64_t RecordCipher::random_word() {
  std::uint64_t word = 0;
  randombytes_buf(&word, sizeof word);
  return word;
}

void RecordCipher::seal(const kvcache::RecordHeader& header, std::span<std::byte> record) const {
  const auto secret = secret_part(header, record);
  const auto shown = kvcache::authenticated_part(record);
  std::array<std::uint8_t, 16> tag{};
  crypto_aead_xchacha20poly1305_ietf_encrypt_detached(
      bytes_of(secret.data()), tag.data(), nullptr, bytes_of(secret.data()), secret.size(),
      reinterpret_cast<const unsigned char*>(shown.data()), shown.size(), nullptr,
      header.nonce.data(), key_.data());
  kvcache::write_record_tag(tag, record);
}

bool RecordCipher::open(const kvcache::RecordHeader& header, std::span<std::byte> record) const {
  const auto secret = secret_part(header, record);
  const auto shown = kvcache::authenticated_part(record);
  return crypto_aead_xchacha20poly1305_ietf_decrypt_detached(
             bytes_of(secret.data()), nullptr, bytes_of(secret.data()), secret.size(),
             header.tag.data(), reinterpret_cast<const unsigned char*>(shown.data()), shown.size(),
             header.nonce.data(), key_.data()) == 0;
}

}  // namespace penstock::disk
