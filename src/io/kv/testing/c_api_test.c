/* An engine in C11 uses the KV cache through the shared library: c_api_test KVD_FOR_TESTS
 *
 * Stores, acquires, loads, verifies, releases; kills the daemon, sees misses, and hits again when
 * it is back. It waits on conditions only; ctest ends it if it hangs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <penstock_kv.h>

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              pkv_last_error());                                                      \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

enum { LAYERS = 3, BLOCKS = 8, BLOCK_TOKENS = 16, SLICE = 4096, POOL_BLOCKS = 2 * BLOCKS };
static const uint64_t long_us = 60000000;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned wakes;
static unsigned stores_done;
static uint32_t stored_last;

static void on_wake(void* context) {
  (void)context;
  pthread_mutex_lock(&mutex);
  ++wakes;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static void on_stored(void* context, uint32_t stored) {
  (void)context;
  pthread_mutex_lock(&mutex);
  ++stores_done;
  stored_last = stored;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static pid_t start_daemon(const char* program, const char* socket) {
  const pid_t pid = fork();
  if (pid == 0) {
    execl(program, program, socket, (char*)NULL);
    _exit(127);
  }
  CHECK(pid > 0);
  return pid;
}

/* Acquires and waits until nothing more comes. */
static pkv_lease* fetch(pkv_client* client, uint32_t root, const pkv_key* keys,
                        pkv_progress_info* info) {
  pkv_request request;
  memset(&request, 0, sizeof request);
  request.size = sizeof request;
  request.root = root;
  request.keys = keys;
  request.key_count = BLOCKS;
  request.request_id = "c-test";
  request.budget_us = long_us;
  request.wake = on_wake;
  pkv_lease* lease = NULL;
  pthread_mutex_lock(&mutex);
  const unsigned before = wakes;
  pthread_mutex_unlock(&mutex);
  CHECK(pkv_acquire(client, &request, &lease) == PKV_OK);
  for (unsigned seen = before;;) {
    info->size = sizeof *info;
    CHECK(pkv_progress(lease, info) == PKV_OK);
    if (info->final) return lease;
    pthread_mutex_lock(&mutex);
    while (wakes == seen)
      pthread_cond_wait(&changed, &mutex);
    seen = wakes;
    pthread_mutex_unlock(&mutex);
  }
}

static uint32_t store(pkv_client* client, uint32_t pool, uint32_t root, const pkv_key* keys) {
  uint64_t offsets[BLOCKS * LAYERS];
  for (int i = 0; i < BLOCKS * LAYERS; ++i)
    offsets[i] = (uint64_t)i * SLICE;
  pkv_store_request request;
  memset(&request, 0, sizeof request);
  request.size = sizeof request;
  request.pool = pool;
  request.root = root;
  request.keys = keys;
  request.count = BLOCKS;
  request.slice_offsets = offsets;
  request.ttl_class = "default";
  request.done = on_stored;
  pthread_mutex_lock(&mutex);
  const unsigned before = stores_done;
  pthread_mutex_unlock(&mutex);
  CHECK(pkv_store(client, &request) == PKV_OK);
  pthread_mutex_lock(&mutex);
  while (stores_done == before)
    pthread_cond_wait(&changed, &mutex);
  const uint32_t kept = stored_last;
  pthread_mutex_unlock(&mutex);
  return kept;
}

static void load_and_compare(pkv_client* client, uint32_t root, const pkv_key* keys,
                             unsigned char* memory) {
  pkv_progress_info info;
  pkv_lease* lease = fetch(client, root, keys, &info);
  CHECK(info.usable_blocks == BLOCKS && info.host_blocks == BLOCKS && info.missing == 0);
  unsigned char* copy = memory + BLOCKS * LAYERS * SLICE;
  memset(copy, 0, BLOCKS * LAYERS * SLICE);
  void* places[BLOCKS * LAYERS];
  for (int i = 0; i < BLOCKS * LAYERS; ++i)
    places[i] = copy + i * SLICE;
  uint32_t valid = 0;
  CHECK(pkv_wait_layer(lease, 0, 0, &valid) == PKV_INVALID);
  CHECK(pkv_load(lease, BLOCKS + 1, places) == PKV_INVALID);
  CHECK(pkv_load(lease, BLOCKS, places) == PKV_OK);
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    CHECK(pkv_wait_layer(lease, layer, long_us, &valid) == PKV_OK);
    CHECK(valid == BLOCKS);
  }
  CHECK(memcmp(memory, copy, BLOCKS * LAYERS * SLICE) == 0);
  pkv_release(lease);
}

/* What engines of an earlier and of a later version pass: a struct that ends sooner, and one with
 * more behind it. */
static void check_sizes(pkv_client* client, uint32_t pool, const pkv_root_fields* fields,
                        uint32_t root, const pkv_key* keys) {
  struct {
    pkv_root_fields known;
    unsigned char later[16];
  } wide;
  memset(&wide, 0, sizeof wide);
  wide.known = *fields;
  wide.known.size = sizeof wide;
  uint32_t again = 99;
  CHECK(pkv_register_root(client, pool, &wide.known, &again) == PKV_OK);
  wide.later[15] = 1; /* it wants something that we don't know */
  CHECK(pkv_register_root(client, pool, &wide.known, &again) == PKV_INVALID);
  wide.known.size = PKV_ROOT_FIELDS_SIZE_V1;
  CHECK(pkv_register_root(client, pool, &wide.known, &again) == PKV_OK);
  wide.known.size = PKV_ROOT_FIELDS_SIZE_V1 - 1;
  CHECK(pkv_register_root(client, pool, &wide.known, &again) == PKV_INVALID);
  wide.known.size = (size_t)1 << 40; /* never set */
  CHECK(pkv_register_root(client, pool, &wide.known, &again) == PKV_INVALID);

  pkv_request request;
  memset(&request, 0x5A, sizeof request); /* beyond its size nothing is read */
  memset(&request, 0, PKV_REQUEST_SIZE_V1);
  request.size = PKV_REQUEST_SIZE_V1;
  request.root = root;
  request.keys = keys;
  request.key_count = 1;
  pkv_lease* lease = NULL;
  CHECK(pkv_acquire(client, &request, &lease) == PKV_OK);
  struct {
    pkv_progress_info known;
    unsigned char later[16];
  } info;
  memset(&info, 0x5A, sizeof info);
  info.known.size = PKV_PROGRESS_INFO_SIZE_V1;
  CHECK(pkv_progress(lease, &info.known) == PKV_OK);
  CHECK(info.known.usable_blocks == 0 && info.known.final <= 1);
  CHECK(info.known.host_blocks == 0x5A5A5A5A && info.known.peer_blocks == 0x5A5A5A5A);
  info.known.size = sizeof info;
  CHECK(pkv_progress(lease, &info.known) == PKV_OK);
  CHECK(info.known.size == sizeof info && info.known.peer_blocks == 0 && info.later[15] == 0);
  info.known.size = PKV_PROGRESS_INFO_SIZE_V1 - 1;
  CHECK(pkv_progress(lease, &info.known) == PKV_INVALID);
  pkv_release(lease);

  pkv_store_request store_request;
  memset(&store_request, 0, sizeof store_request);
  store_request.size = PKV_STORE_REQUEST_SIZE_V1 - sizeof(void*);
  store_request.keys = keys;
  CHECK(pkv_store(client, &store_request) == PKV_INVALID);
  pkv_layout layout;
  memset(&layout, 0, sizeof layout);
  layout.size = PKV_LAYOUT_SIZE_V1 - 1;
  CHECK(pkv_register_pool(client, -1, 4096, &layout, &again) == PKV_INVALID);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(pkv_version() == PKV_VERSION);
  CHECK(strcmp(pkv_reason_text(1), "never_stored") == 0);
  CHECK(strcmp(pkv_reason_text(255), "unknown") == 0);

  char folder[] = "/tmp/penstock-kv-c-XXXXXX";
  CHECK(mkdtemp(folder) != NULL);
  char socket_path[128], secret_path[128], lock_path[160];
  snprintf(socket_path, sizeof socket_path, "%s/kvd.sock", folder);
  snprintf(secret_path, sizeof secret_path, "%s/secret", folder);
  snprintf(lock_path, sizeof lock_path, "%s.lock", socket_path);

  pkv_client* client = NULL;
  pkv_options options;
  memset(&options, 0, sizeof options);
  options.socket = socket_path;
  options.secret_file = secret_path;
  options.name = "c-test";
  CHECK(pkv_connect(&options, &client) == PKV_INVALID); /* no size */
  options.size = PKV_OPTIONS_SIZE_V1 - 1;
  CHECK(pkv_connect(&options, &client) == PKV_INVALID);
  options.size = sizeof options;
  CHECK(pkv_connect(&options, &client) == PKV_IO); /* no secret */
  CHECK(strstr(pkv_last_error(), secret_path) != NULL);
  const int secret = open(secret_path, O_CREAT | O_WRONLY, 0600);
  for (int i = 1; i <= 32; ++i)
    dprintf(secret, "%02x", i);
  dprintf(secret, "\n");
  close(secret);
  options.size = PKV_OPTIONS_SIZE_V1;
  memset(&options.log, 0x5A, sizeof options - PKV_OPTIONS_SIZE_V1);
  CHECK(pkv_connect(&options, &client) == PKV_OK);

  const int fd = memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const size_t bytes = (size_t)POOL_BLOCKS * LAYERS * SLICE;
  CHECK(ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  unsigned char* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  for (size_t i = 0; i < bytes / 2; ++i)
    memory[i] = (unsigned char)(i * 31 + i / 4096);
  const uint32_t slice_bytes[LAYERS] = {SLICE, SLICE, SLICE};
  pkv_layout layout;
  memset(&layout, 0, sizeof layout);
  memset(&layout.is_window, 0x5A, sizeof layout - PKV_LAYOUT_SIZE_V1);
  layout.size = PKV_LAYOUT_SIZE_V1;
  layout.block_tokens = BLOCK_TOKENS;
  layout.layers = LAYERS;
  layout.slice_bytes = slice_bytes;
  uint32_t pool = 9, root = 9;
  CHECK(pkv_register_pool(client, fd, bytes + 1, &layout, &pool) == PKV_INVALID);
  CHECK(pkv_register_pool(client, fd, bytes, &layout, &pool) == PKV_OK);
  pkv_root_fields fields;
  memset(&fields, 0, sizeof fields);
  fields.size = sizeof fields;
  fields.model = "m";
  fields.weights_digest = "w";
  fields.engine_build = "e";
  fields.kv_format = "f";
  CHECK(pkv_register_root(client, pool, &fields, &root) == PKV_INVALID); /* no scope */
  fields.scope = "tenant:c";
  CHECK(pkv_register_root(client, pool, &fields, &root) == PKV_OK);

  uint32_t tokens[BLOCKS * BLOCK_TOKENS + 3];
  for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; ++i)
    tokens[i] = (uint32_t)i;
  pkv_key keys[BLOCKS];
  CHECK(pkv_chain(client, root, tokens, sizeof tokens / sizeof tokens[0], NULL, 0, keys) == PKV_OK);
  CHECK(memcmp(&keys[0], &keys[1], sizeof keys[0]) != 0);

  check_sizes(client, pool, &fields, root, keys);

  /* No daemon yet: everything is a miss, at once. */
  pkv_progress_info info;
  pkv_lease* lease = fetch(client, root, keys, &info);
  CHECK(info.usable_blocks == 0 && strcmp(pkv_reason_text(info.missing), "no_daemon") == 0);
  pkv_release(lease);
  uint8_t tiers[BLOCKS];
  CHECK(pkv_match(client, keys, BLOCKS, long_us, tiers) == PKV_MISS);
  CHECK(pkv_wait_connected(client, 0) == PKV_TIMEOUT && pkv_connected(client) == 0);

  for (int run = 0; run < 2; ++run) {
    const pid_t daemon = start_daemon(argv[1], socket_path);
    CHECK(pkv_wait_connected(client, long_us) == PKV_OK && pkv_connected(client) == 1);
    lease = fetch(client, root, keys, &info);
    CHECK(info.usable_blocks == 0 && strcmp(pkv_reason_text(info.missing), "never_stored") == 0);
    pkv_release(lease);
    CHECK(store(client, pool, root, keys) == BLOCKS);
    load_and_compare(client, root, keys, memory);
    CHECK(pkv_match(client, keys, BLOCKS, long_us, tiers) == PKV_OK && tiers[BLOCKS - 1] == 2);
    CHECK(kill(daemon, SIGKILL) == 0 && waitpid(daemon, NULL, 0) == daemon);
    while (pkv_match(client, keys, BLOCKS, long_us, tiers) != PKV_MISS) {
    }
  }
  pkv_disconnect(client);
  pkv_disconnect(NULL);
  pkv_release(NULL);
  unlink(socket_path);
  unlink(secret_path);
  unlink(lock_path);
  CHECK(rmdir(folder) == 0);
  puts("ok");
  return 0;
}
