#include "io/rados/rados_store.h"

#include <fmt/format.h>

#if PENSTOCK_RADOS
#include "io/rados/rados_block_store.h"
#endif

namespace penstock::rados {

#if PENSTOCK_RADOS
Result<std::unique_ptr<BlockStore>> open_rados_store(RadosStoreOptions options) {
  for (const auto& [what, value] :
       {std::pair{"ceph.conf", &options.conf}, std::pair{"extents pool", &options.extents_pool},
        std::pair{"pool of small objects", &options.small_pool}})
    if (value->empty())
      return fail(ErrorCode::kInvalidArgument, fmt::format("a RADOS store needs a {}", what));
  // An empty one would be the pools' common name space; "\001" means all of them to librados.
  if (options.name_space.empty() || options.name_space.front() == '\001')
    return fail(ErrorCode::kInvalidArgument, "a RADOS store needs a name space of its own");
  if (!options.user.starts_with("client.") || options.user.size() == 7)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the user of a RADOS store is 'client.NAME', not '{}'", options.user));
  TRY(const RadosLibrary* library, load_rados());
  return std::make_unique<RadosBlockStore>(*library, options);
}
#else
Result<std::unique_ptr<BlockStore>> open_rados_store(RadosStoreOptions) {
  return fail(
      ErrorCode::kUnsupported,
      "this penstock was built without RADOS: install librados-dev (tools/install_packages.sh "
      "ceph) and build again");
}
#endif

}  // namespace penstock::rados
