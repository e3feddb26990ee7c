// A mount that fails, for tests: preloaded (LD_PRELOAD), it makes file calls in the folder
// FAULTY_MOUNT answer with an error, or hang, as the file FAULTY_MOUNT_FAULT says at that moment:
// "EIO", "ENOSPC", "ESTALE", "hang"; anything else: the calls go ahead. A call that hangs goes
// ahead when the file says so.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int is_inside(int fd) {
  const char* const mount = getenv("FAULTY_MOUNT");
  if (mount == NULL || fd < 0) return 0;
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t bytes = readlink(link, path, sizeof path - 1);
  if (bytes <= 0) return 0;
  path[bytes] = '\0';
  return strncmp(path, mount, strlen(mount)) == 0;
}

static void current_fault(char* text, size_t size) {
  text[0] = '\0';
  const char* const file = getenv("FAULTY_MOUNT_FAULT");
  if (file == NULL) return;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  const ssize_t bytes = syscall(SYS_pread64, fd, text, size - 1, 0L);
  text[bytes > 0 ? bytes : 0] = '\0';
  syscall(SYS_close, fd);
}

// 0, or the errno that the call is to answer with.
static int fault(int fd) {
  if (!is_inside(fd)) return 0;
  for (;;) {
    char text[32];
    current_fault(text, sizeof text);
    if (strncmp(text, "EIO", 3) == 0) return EIO;
    if (strncmp(text, "ENOSPC", 6) == 0) return ENOSPC;
    if (strncmp(text, "ESTALE", 6) == 0) return ESTALE;
    if (strncmp(text, "hang", 4) != 0) return 0;
    usleep(20000);
  }
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CHECK_FAULT(fd)          \
  do {                           \
    const int error = fault(fd); \
    if (error != 0) {            \
      errno = error;             \
      return -1;                 \
    }                            \
  } while (0)

ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  CHECK_FAULT(fd);
  return NEXT(pread)(fd, to, bytes, offset);
}
ssize_t pread64(int fd, void* to, size_t bytes, off64_t offset) {
  CHECK_FAULT(fd);
  return NEXT(pread64)(fd, to, bytes, offset);
}
ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  CHECK_FAULT(fd);
  return NEXT(pwrite)(fd, from, bytes, offset);
}
ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t offset) {
  CHECK_FAULT(fd);
  return NEXT(pwrite64)(fd, from, bytes, offset);
}
int openat(int fd, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  CHECK_FAULT(fd);
  return (int)syscall(SYS_openat, fd, path, flags, mode);
}
int fstatat(int fd, const char* restrict path, struct stat* restrict state, int flags) {
  CHECK_FAULT(fd);
  return NEXT(fstatat)(fd, path, state, flags);
}
int renameat(int from_fd, const char* from, int to_fd, const char* to) {
  CHECK_FAULT(from_fd);
  return NEXT(renameat)(from_fd, from, to_fd, to);
}
int utimensat(int fd, const char* path, const struct timespec times[2], int flags) {
  CHECK_FAULT(fd);
  return NEXT(utimensat)(fd, path, times, flags);
}
