// The deployment secret, under which KV blocks get their names.
//
// A file of 64 hexadecimal digits, readable by its owner only. All gateways and workers that share
// KV need the same one: copy the file to every host (or mount one secret into all containers). On a
// single machine it is made at the first start. `openssl rand -hex 32` makes one by hand.
//
// Rotation: write the new secret into the first line, restart workers and gateways. All names are
// new then: every block stored before is a miss, and goes when its lifetime ends or its space is
// needed. The old secret may stay in a second line for the record; it is never used. Processes with
// different secrets are told apart at their hello (KeyChain::key_check) and never hit each other's
// blocks.
//
// Invariants: an existing file is never changed; of several processes that make it at once all get
// the same secret. Errors: kNotFound, kPermissionDenied (others can read it), kInvalidArgument with
// the line and what to do, never with the secret; kIo. Concurrency: any process; in one
// process only one thread creates. Blocks.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace penstock {

using KvSecret = std::array<std::uint8_t, 32>;

Result<KvSecret> read_kv_secret(const std::string& path);

// The secret in the file; when there is none yet, `fresh` (32 random bytes) goes into a new one.
Result<KvSecret> read_or_create_kv_secret(const std::string& path, const KvSecret& fresh);

}  // namespace penstock
