/* penstock_kv: the KV cache service for an inference engine, in C.
 *
 * An engine keeps the KV of prefixes beyond its own memory: it asks for the blocks of a prompt
 * while the request is queued, copies what has arrived into its own pool layer by layer, and gives
 * finished blocks away. The daemon (`penstock kvd`) owns host memory and disk; this library maps
 * its arena read-only and never waits for it longer than the caller allows.
 *
 * - pkv_connect: once; works without a daemon (everything is a miss) and finds it later
 * - pkv_register_pool, pkv_register_root: once for each pool, and for each model and scope
 * - pkv_chain: tokens to keys; remembers chains, so a next turn hashes only what is new
 * - pkv_acquire, pkv_progress: starts the fetch and never blocks; poll, or get `wake` called
 * - pkv_load, pkv_wait_layer: granted blocks into the pool, layer after layer, verified
 * - pkv_release: always, also after failures; no copy goes on after it returns
 * - pkv_store: offers finished blocks; `done` says when the pool's memory is free again
 *
 * Everything is a hit whose bytes were verified, or a miss with a reason. No function aborts or
 * throws. Threads: any function from any thread, but one lease is one thread's at a time. Callbacks
 * come from a thread of the library and must not block or call back into it. Memory: the caller's,
 * unless said otherwise. Sizes are bytes.
 *
 * Structs begin with `size`: set it to sizeof. Later versions add fields at the end and never
 * change or move one. PKV_..._SIZE_V1 is what every version needs of a struct. By `size`:
 * - below that, or above 4096: refused (PKV_INVALID).
 * - below the library's own: fields beyond it are not read and count as 0, which is always the
 *   default; those of pkv_progress_info are not written.
 * - above the library's own (an engine built for a later version): accepted while all bytes beyond
 *   are 0, refused otherwise: it wants what this library does not know. Those of pkv_progress_info
 *   become 0.
 */
#ifndef PENSTOCK_KV_H
#define PENSTOCK_KV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PKV_VERSION 1u
#define PKV_KEY_BYTES 16

typedef struct pkv_client pkv_client;
typedef struct pkv_lease pkv_lease;

typedef enum pkv_status {
  PKV_OK = 0,
  PKV_INVALID = 1, /* an argument is out of range; see pkv_last_error */
  PKV_TIMEOUT = 2, /* not yet; ask again */
  PKV_MISS = 3,    /* not served; the reason is a penstock miss reason (pkv_reason_text) */
  PKV_IO = 4,      /* memory or socket could not be set up; see pkv_last_error */
} pkv_status;

typedef struct pkv_key {
  uint8_t bytes[PKV_KEY_BYTES];
} pkv_key;

/* The library's version: refuse to run when it is not PKV_VERSION. */
uint32_t pkv_version(void);
/* Text of the calling thread's last failure; empty when there was none. */
const char* pkv_last_error(void);
const char* pkv_reason_text(uint8_t reason);

typedef struct pkv_options {
  size_t size;
  const char* socket;      /* the daemon's Unix socket */
  const char* secret_file; /* the deployment secret: 64 hexadecimal digits */
  const char* name;        /* of this worker, for logs */
  void (*log)(void* context, int level, const char* text); /* may be null */
  void* log_context;
} pkv_options;
#define PKV_OPTIONS_SIZE_V1 offsetof(pkv_options, log)

/* Connects in the background and again whenever the daemon comes back. PKV_IO: the secret can't be
 * read. */
pkv_status pkv_connect(const pkv_options* options, pkv_client** client);
/* Ends copies and calls `done` of every open store before it returns. Leases not released are gone
 * with it. */
void pkv_disconnect(pkv_client* client);
/* 1 while a daemon is connected. */
int pkv_connected(const pkv_client* client);
/* Waits for a daemon. PKV_TIMEOUT: there is none yet. */
pkv_status pkv_wait_connected(const pkv_client* client, uint64_t timeout_us);

/* How one block lies in the pool. History slices are needed of every block of a prefix; window
 * slices (of sliding-window layers) only of the last window_tokens before the point where a hit
 * resumes. */
typedef struct pkv_layout {
  size_t size;
  uint32_t block_tokens;
  uint32_t layers;
  const uint32_t* slice_bytes; /* [layers] bytes of one block's slice */
  const uint8_t* is_window;    /* [layers] 1: a sliding-window layer; null: none is */
  uint32_t window_tokens;      /* multiple of block_tokens; 0 without window layers */
} pkv_layout;
#define PKV_LAYOUT_SIZE_V1 offsetof(pkv_layout, is_window)

/* `fd` is a memfd of at least `bytes` with F_SEAL_SHRINK (so that it can't shrink under the daemon,
 * which maps it read-only and copies finished blocks from it). It is duplicated. */
pkv_status pkv_register_pool(pkv_client* client, int fd, uint64_t bytes, const pkv_layout* layout,
                             uint32_t* pool);

/* Everything that changes the bytes of KV, and who may share it. Equal fields give equal roots
 * anywhere. */
typedef struct pkv_root_fields {
  size_t size;
  const char* model;          /* for people; not part of the key */
  const char* weights_digest; /* of the weights' bytes, not a name */
  const char* engine_build;   /* engine, version and kernel semantics */
  const char* kv_format;      /* dtype, quantisation, layout fingerprint */
  const char* lora;           /* id and version; empty for none */
  const char* scope;          /* isolation scope: "tenant:...", "user:...", "deployment" */
} pkv_root_fields;
#define PKV_ROOT_FIELDS_SIZE_V1 (offsetof(pkv_root_fields, scope) + sizeof(const char*))
pkv_status pkv_register_root(pkv_client* client, uint32_t pool, const pkv_root_fields* fields,
                             uint32_t* root);

/* Media inside the prompt: its content hash and where it starts. Placeholder tokens stay in
 * `tokens`. */
typedef struct pkv_media {
  uint64_t token_offset;
  uint8_t content_hash[32];
} pkv_media;

/* Keys of the whole blocks of `tokens`; keys has room for tokens / block_tokens. */
pkv_status pkv_chain(pkv_client* client, uint32_t root, const uint32_t* tokens, size_t token_count,
                     const pkv_media* media, size_t media_count, pkv_key* keys);

typedef struct pkv_request {
  size_t size;
  uint32_t root;
  const pkv_key* keys; /* from depth 0 */
  size_t key_count;
  const uint32_t* tokens;      /* of the first block, for explain; may be null */
  const char* request_id;      /* for explain; may be null */
  const char* tenant;          /* may be null */
  const char* ttl_class;       /* "agent", "chat"; null: default */
  uint64_t budget_us;          /* after it, what has arrived is all there is */
  void (*wake)(void* context); /* called when progress changed; may be null */
  void* wake_context;
  /* What computing costs here, in seconds: base + token * fresh + pair * fresh * (context + fresh /
   * 2). Loads that would take longer are left out (reason recompute_faster). All 0: not known,
   * everything is loaded. */
  double prefill_base, prefill_token, prefill_pair;
} pkv_request;
#define PKV_REQUEST_SIZE_V1 offsetof(pkv_request, wake)

/* Starts the fetch. Never blocks; without a daemon the lease is final at once, with no blocks. */
pkv_status pkv_acquire(pkv_client* client, const pkv_request* request, pkv_lease** lease);

typedef struct pkv_progress_info {
  size_t size;
  uint32_t history_blocks; /* contiguous from depth 0, readable now */
  uint32_t
      usable_blocks; /* of them, up to the best exact resume point (all, without window layers) */
  uint8_t final;     /* nothing more will come */
  uint8_t missing;   /* with final: why the next block was not served */
  uint32_t host_blocks, disk_blocks, peer_blocks; /* where usable blocks came from */
} pkv_progress_info;
#define PKV_PROGRESS_INFO_SIZE_V1 offsetof(pkv_progress_info, host_blocks)
pkv_status pkv_progress(pkv_lease* lease, pkv_progress_info* info);

/* Copies blocks [0, count) into the pool: slice l of block i goes to pool memory `slices[i * layers
 * + l]` (window layers: only the last window_tokens before the resume point are written, the other
 * blocks' stay as they are). Returns at once; a thread of the library copies in order of layers.
 * count <= usable_blocks; once a lease. `slices` is copied. With window layers the copy ends at the
 * last resume point within count. */
pkv_status pkv_load(pkv_lease* lease, uint32_t count, void* const* slices);
/* Waits until `layer` of all loaded blocks is in place. `valid` is the number of leading blocks
 * whose slices so far all had the right checksum. PKV_TIMEOUT: still copying. PKV_MISS: fewer than
 * `count` are valid (reason by pkv_progress). */
pkv_status pkv_wait_layer(pkv_lease* lease, uint32_t layer, uint64_t timeout_us, uint32_t* valid);
/* Ends copying and gives pins back. The lease is gone afterwards. */
void pkv_release(pkv_lease* lease);

typedef struct pkv_store_request {
  size_t size;
  uint32_t pool;
  uint32_t root;
  const pkv_key* keys;           /* of the chain from depth 0 */
  uint32_t first, count;         /* depths to offer: [first, first + count) */
  const uint64_t* slice_offsets; /* [count][layers] places in the pool */
  const uint32_t* window_depths; /* depths at whose end the window state is offered too; each within
                                    the range, */
  uint32_t window_count;         /* with the window's blocks in the range as well */
  const uint32_t* tokens;        /* of the first block, for explain; may be null */
  const char* tenant;
  const char* ttl_class;
  /* Called once, also when the daemon dies: the pool's memory may be written again. stored: blocks
   * kept. */
  void (*done)(void* context, uint32_t stored);
  void* done_context;
} pkv_store_request;
#define PKV_STORE_REQUEST_SIZE_V1 (offsetof(pkv_store_request, done_context) + sizeof(void*))
/* Offers blocks. PKV_TIMEOUT: too much is in flight (backpressure); PKV_MISS: no daemon. Whenever
 * it is not PKV_OK, nothing was taken and `done` is not called. */
pkv_status pkv_store(pkv_client* client, const pkv_store_request* request);

/* Which of these history blocks are held: tiers[i] has bit 1 for host, 2 for disk, 3 for another
 * host. PKV_MISS: no daemon. */
pkv_status pkv_match(pkv_client* client, const pkv_key* keys, size_t key_count, uint64_t timeout_us,
                     uint8_t* tiers);

#ifdef __cplusplus
}
#endif
#endif
