// include/penstock_kv.h over KvClient: checks arguments, turns errors into statuses.
#include <penstock_kv.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "io/files/kv_secret.h"
#include "io/kv/client.h"

using namespace penstock;  // NOLINT: what follows is C

struct pkv_client {
  std::unique_ptr<kv::KvClient> client;
};

struct pkv_lease {
  kv::KvClient* client;
  kv::KvLease* lease;
};

namespace {

static_assert(sizeof(pkv_key) == sizeof(BlockKey));

thread_local std::string last_error;  // NOLINT: errno's way, part of the interface

constexpr int kLogNotice = 1;

pkv_status failed(const Error& error) {
  last_error = error.message;
  switch (error.code) {
    case ErrorCode::kOverloaded:
    case ErrorCode::kDeadlineExceeded:
      return PKV_TIMEOUT;
    case ErrorCode::kUnavailable:
      return PKV_MISS;
    case ErrorCode::kInvalidArgument:
      return PKV_INVALID;
    default:
      return PKV_IO;
  }
}

pkv_status invalid(const char* why) {
  last_error = why;
  return PKV_INVALID;
}

// Nothing leaves as an exception: an engine in C would not survive it.
template <typename Body>
pkv_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    last_error = error.what();
    return PKV_IO;
  }
}

// More than any version will have: the size was not set.
constexpr std::size_t kStructBytesMax = 4096;

// Whether the caller's struct is one of some version: not smaller than the first one's `v1` bytes.
template <typename Struct>
bool sized(const Struct* s, std::size_t v1) {
  return s != nullptr && s->size >= v1 && s->size <= kStructBytesMax;
}

// The caller's struct as one of this version: fields that it does not have are 0. Nullopt when it
// is too small, or asks for something that this version does not know.
template <typename Struct>
std::optional<Struct> taken(const Struct* s, std::size_t v1) {
  if (!sized(s, v1)) return std::nullopt;
  const auto* bytes = reinterpret_cast<const unsigned char*>(s);
  for (std::size_t at = sizeof(Struct); at < s->size; ++at)
    if (bytes[at] != 0) return std::nullopt;
  Struct out{};
  std::memcpy(&out, bytes, std::min(s->size, sizeof(Struct)));
  return out;
}

// Gives the caller as much of `value` as its struct has room for; what this version does not know
// becomes 0.
template <typename Struct>
void give(const Struct& value, Struct* to) {
  const std::size_t size = to->size;
  auto* bytes = reinterpret_cast<unsigned char*>(to);
  std::memcpy(bytes, &value, std::min(size, sizeof(Struct)));
  if (size > sizeof(Struct)) std::memset(bytes + sizeof(Struct), 0, size - sizeof(Struct));
}

std::string text(const char* string) {
  return string == nullptr ? std::string() : std::string(string);
}

std::span<const BlockKey> keys_of(const pkv_key* keys, std::size_t count) {
  // BlockKey is an array of 16 bytes, as pkv_key is.
  return {reinterpret_cast<const BlockKey*>(keys), count};
}

std::span<const TokenId> first_block(const std::uint32_t* tokens, const kv::EngineLayout& layout) {
  static_assert(sizeof(TokenId) == sizeof(std::uint32_t));
  if (tokens == nullptr) return {};
  return {reinterpret_cast<const TokenId*>(tokens), layout.block_tokens};
}

Duration microseconds(std::uint64_t us) {
  constexpr std::uint64_t kHour = 3'600'000'000;
  return std::chrono::microseconds(static_cast<std::int64_t>(us < kHour ? us : kHour));
}

}  // namespace

extern "C" {

uint32_t pkv_version(void) {
  return PKV_VERSION;
}

const char* pkv_last_error(void) {
  return last_error.c_str();
}

const char* pkv_reason_text(uint8_t reason) {
  return to_string(static_cast<MissReason>(reason)).data();
}

pkv_status pkv_connect(const pkv_options* given, pkv_client** client) {
  return guarded([&] {
    if (client == nullptr) return invalid("no place for the client");
    *client = nullptr;
    const auto options = taken(given, PKV_OPTIONS_SIZE_V1);
    if (!options || options->socket == nullptr || options->secret_file == nullptr) {
      return invalid("options need their size, a socket and a secret_file");
    }
    auto secret = read_kv_secret(options->secret_file);
    if (!secret) {
      last_error = secret.error().message;
      return PKV_IO;
    }
    kv::KvClientOptions out;
    out.socket = options->socket;
    out.secret = *secret;
    out.name = text(options->name);
    if (options->log != nullptr) {
      out.log = [log = options->log, context = options->log_context](std::string_view line) {
        log(context, kLogNotice, std::string(line).c_str());
      };
    }
    auto opened = kv::KvClient::open(std::move(out));
    if (!opened) return failed(opened.error());
    *client = new pkv_client{std::move(*opened)};
    return PKV_OK;
  });
}

void pkv_disconnect(pkv_client* client) {
  delete client;
}

int pkv_connected(const pkv_client* client) {
  return client != nullptr && client->client->connected() ? 1 : 0;
}

pkv_status pkv_wait_connected(const pkv_client* client, uint64_t timeout_us) {
  return guarded([&] {
    if (client == nullptr) return invalid("no client");
    return client->client->wait_connected(microseconds(timeout_us)) ? PKV_OK : PKV_TIMEOUT;
  });
}

pkv_status pkv_register_pool(pkv_client* client, int fd, uint64_t bytes, const pkv_layout* given,
                             uint32_t* pool) {
  return guarded([&] {
    const auto layout = taken(given, PKV_LAYOUT_SIZE_V1);
    if (client == nullptr || pool == nullptr || !layout || layout->slice_bytes == nullptr) {
      return invalid("a pool needs a client, a layout with its size, and a place for its number");
    }
    kv::EngineLayout out;
    out.block_tokens = layout->block_tokens;
    out.slice_bytes.assign(layout->slice_bytes, layout->slice_bytes + layout->layers);
    for (uint32_t layer = 0; layout->is_window != nullptr && layer < layout->layers; ++layer)
      out.window.push_back(layout->is_window[layer] != 0);
    out.window_tokens = layout->window_tokens;
    const auto number = client->client->register_pool(fd, bytes, std::move(out));
    if (!number) return failed(number.error());
    *pool = *number;
    return PKV_OK;
  });
}

pkv_status pkv_register_root(pkv_client* client, uint32_t pool, const pkv_root_fields* given,
                             uint32_t* root) {
  return guarded([&] {
    const auto fields = taken(given, PKV_ROOT_FIELDS_SIZE_V1);
    if (client == nullptr || root == nullptr || !fields) {
      return invalid("a root needs a client, fields with their size, and a place for its number");
    }
    const auto number = client->client->register_root(
        pool,
        {text(fields->weights_digest), text(fields->engine_build), text(fields->kv_format),
         text(fields->lora), text(fields->scope), 0},
        text(fields->model));
    if (!number) return failed(number.error());
    *root = *number;
    return PKV_OK;
  });
}

pkv_status pkv_chain(pkv_client* client, uint32_t root, const uint32_t* tokens, size_t token_count,
                     const pkv_media* media, size_t media_count, pkv_key* keys) {
  return guarded([&] {
    if (client == nullptr || (tokens == nullptr && token_count > 0) ||
        (media == nullptr && media_count > 0) || keys == nullptr) {
      return invalid("a chain needs a client, tokens, and places for keys");
    }
    std::vector<kvcache::KvMedia> items(media_count);
    for (size_t i = 0; i < media_count; ++i) {
      items[i].token_offset = media[i].token_offset;
      std::memcpy(items[i].content_hash.data(), media[i].content_hash, 32);
      if (i > 0 && items[i].token_offset < items[i - 1].token_offset) {
        return invalid("media must ascend by token_offset");
      }
    }
    const auto chain =
        client->client->chain(root, {reinterpret_cast<const TokenId*>(tokens), token_count}, items);
    if (!chain) return failed(chain.error());
    std::memcpy(keys, chain->data(), chain->size() * sizeof(pkv_key));
    return PKV_OK;
  });
}

pkv_status pkv_acquire(pkv_client* client, const pkv_request* given, pkv_lease** lease) {
  return guarded([&] {
    const auto request = taken(given, PKV_REQUEST_SIZE_V1);
    if (client == nullptr || lease == nullptr || !request ||
        (request->keys == nullptr && request->key_count > 0)) {
      return invalid("a lease needs a client, a request with its size and keys, and a place");
    }
    *lease = nullptr;
    const kv::EngineLayout* layout = client->client->root_layout(request->root);
    if (layout == nullptr) return invalid("a root that is not registered");
    kv::KvRequest out;
    out.root = request->root;
    out.keys = keys_of(request->keys, request->key_count);
    out.first_block = first_block(request->tokens, *layout);
    out.request = text(request->request_id);
    const std::string tenant = text(request->tenant);
    const std::string ttl_class = text(request->ttl_class);
    out.tenant = tenant;
    out.ttl_class = ttl_class;
    out.budget = microseconds(request->budget_us);
    out.prefill = {request->prefill_base, request->prefill_token, request->prefill_pair};
    if (request->wake != nullptr) {
      out.wake = [wake = request->wake, context = request->wake_context] { wake(context); };
    }
    auto handle = std::make_unique<pkv_lease>(pkv_lease{client->client.get(), nullptr});
    const auto acquired = client->client->acquire(std::move(out));
    if (!acquired) return failed(acquired.error());
    handle->lease = *acquired;
    *lease = handle.release();
    return PKV_OK;
  });
}

pkv_status pkv_progress(pkv_lease* lease, pkv_progress_info* info) {
  return guarded([&] {
    if (lease == nullptr || !sized(info, PKV_PROGRESS_INFO_SIZE_V1)) {
      return invalid("progress needs a lease and its size");
    }
    const kv::KvProgress now = lease->client->progress(*lease->lease);
    give(
        {info->size, now.history_blocks, now.usable_blocks, static_cast<uint8_t>(now.final ? 1 : 0),
         static_cast<uint8_t>(now.missing), now.host_blocks, now.disk_blocks, now.peer_blocks},
        info);
    return PKV_OK;
  });
}

pkv_status pkv_load(pkv_lease* lease, uint32_t count, void* const* slices) {
  return guarded([&] {
    if (lease == nullptr || (slices == nullptr && count > 0)) {
      return invalid("a load needs a lease and places for slices");
    }
    const std::size_t layers = kv::KvClient::layout(*lease->lease).layers();
    const Status started = lease->client->load(*lease->lease, count, {slices, count * layers});
    return started ? PKV_OK : failed(started.error());
  });
}

pkv_status pkv_wait_layer(pkv_lease* lease, uint32_t layer, uint64_t timeout_us, uint32_t* valid) {
  return guarded([&] {
    if (lease == nullptr || valid == nullptr) return invalid("waiting needs a lease and a place");
    const auto result = lease->client->wait_layer(*lease->lease, layer, microseconds(timeout_us));
    if (!result) return failed(result.error());
    *valid = result->valid;
    if (!result->ready) return PKV_TIMEOUT;
    return result->valid == result->wanted ? PKV_OK : PKV_MISS;
  });
}

void pkv_release(pkv_lease* lease) {
  if (lease == nullptr) return;
  (void)guarded([&] {
    lease->client->release(lease->lease);
    return PKV_OK;
  });
  delete lease;
}

pkv_status pkv_store(pkv_client* client, const pkv_store_request* given) {
  return guarded([&] {
    const auto request = taken(given, PKV_STORE_REQUEST_SIZE_V1);
    if (client == nullptr || !request || request->keys == nullptr ||
        request->slice_offsets == nullptr ||
        (request->window_depths == nullptr && request->window_count > 0)) {
      return invalid("a store needs a client, a request with its size, keys and places");
    }
    const kv::EngineLayout* layout = client->client->pool_layout(request->pool);
    if (layout == nullptr) return invalid("a pool that is not registered");
    const std::string tenant = text(request->tenant);
    const std::string ttl_class = text(request->ttl_class);
    kv::KvStore out;
    out.pool = request->pool;
    out.root = request->root;
    out.keys = keys_of(request->keys, std::size_t{request->first} + request->count);
    out.first = request->first;
    out.count = request->count;
    out.slice_offsets = {request->slice_offsets, request->count * layout->layers()};
    out.window_depths = {request->window_depths, request->window_count};
    out.first_block = first_block(request->tokens, *layout);
    out.tenant = tenant;
    out.ttl_class = ttl_class;
    if (request->done != nullptr) {
      out.done = [done = request->done, context = request->done_context](std::uint32_t stored) {
        done(context, stored);
      };
    }
    const Status offered = client->client->store(out);
    return offered ? PKV_OK : failed(offered.error());
  });
}

pkv_status pkv_match(pkv_client* client, const pkv_key* keys, size_t key_count, uint64_t timeout_us,
                     uint8_t* tiers) {
  return guarded([&] {
    if (client == nullptr || keys == nullptr || tiers == nullptr) {
      return invalid("a match needs a client, keys and places");
    }
    const auto answer = client->client->match(keys_of(keys, key_count), microseconds(timeout_us));
    if (!answer) return failed(answer.error());
    std::memcpy(tiers, answer->data(), answer->size());
    return PKV_OK;
  });
}

}  // extern "C"
