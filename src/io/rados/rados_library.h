// RadosLibrary: the functions of librados (C interface) that the store uses, loaded at run time.
//
// Invariants: all are there, or loading fails with kUnavailable and the package's name. Never
// unloaded: librados leaves threads and thread-local state behind.
// Concurrency: immutable. Source: rados/librados.h of Ceph 16 and later.
#pragma once

#include <rados/librados.h>

#include "base/result.h"

// Each once, without "rados_".
#define PENSTOCK_RADOS_FUNCTIONS(X) \
  X(create2)                        \
  X(conf_read_file)                 \
  X(conf_set)                       \
  X(connect)                        \
  X(shutdown)                       \
  X(ioctx_create)                   \
  X(ioctx_destroy)                  \
  X(ioctx_set_namespace)            \
  X(set_pool_full_try)              \
  X(mon_command)                    \
  X(buffer_free)                    \
  X(aio_create_completion2)         \
  X(aio_get_return_value)           \
  X(aio_release)                    \
  X(aio_cancel)                     \
  X(aio_read)                       \
  X(aio_write_op_operate)           \
  X(aio_read_op_operate)            \
  X(create_write_op)                \
  X(release_write_op)               \
  X(write_op_create)                \
  X(write_op_assert_exists)         \
  X(write_op_cmpxattr)              \
  X(write_op_setxattr)              \
  X(write_op_write_full)            \
  X(write_op_remove)                \
  X(write_op_omap_set2)             \
  X(write_op_omap_rm_keys2)         \
  X(create_read_op)                 \
  X(release_read_op)                \
  X(read_op_stat)                   \
  X(read_op_getxattrs)              \
  X(getxattrs_next)                 \
  X(getxattrs_end)                  \
  X(read_op_omap_get_keys2)         \
  X(omap_get_next2)                 \
  X(omap_get_end)                   \
  X(lock_exclusive)                 \
  X(unlock)

namespace penstock::rados {

struct RadosLibrary {
#define PENSTOCK_RADOS_MEMBER(name) decltype(&::rados_##name) name = nullptr;
  PENSTOCK_RADOS_FUNCTIONS(PENSTOCK_RADOS_MEMBER)
#undef PENSTOCK_RADOS_MEMBER
};

// kUnavailable: librados is not installed, or too old.
Result<const RadosLibrary*> load_rados();

}  // namespace penstock::rados
