/* Before the C library's in a server's process: a wall clock that is off by as many nanoseconds as a file says. Other clocks are left alone.

   The file is two numbers of eight bytes, of which the second is written after the first and read before it: where they are equal the
   number is whole. It is mapped, so that a look at the clock costs no more than without. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t *said;

/* Before `main`; memory allocators look at the clock before that, and see the right time. */
__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("DLOCK_WALL_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) _exit(127);
  void *at = mmap(0, 16, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) _exit(127);
  said = at;
}

static int64_t offset(void) {
  if (!said) return 0;
  for (;;) {
    int64_t second = said[1], first = said[0];
    if (first == second) return first;
  }
}

/* By the kernel and not by the function that this replaces: to look that up may allocate, and the allocator asks for the time. */
int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, clock, now);
  if (result || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
  int64_t by = offset(), nanos = now->tv_nsec + by % 1000000000;
  now->tv_sec += by / 1000000000;
  if (nanos < 0) nanos += 1000000000, now->tv_sec--;
  if (nanos >= 1000000000) nanos -= 1000000000, now->tv_sec++;
  now->tv_nsec = nanos;
  return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now) *now = exact.tv_sec;
  return exact.tv_sec;
}
