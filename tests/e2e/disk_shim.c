/* Stands before the C library's syncs and makes them fail or wait, as files in the directory $DISK_SHIM say:
 *
 *   delay    milliseconds that every sync takes longer
 *   fail     while it is there every sync fails with EIO; the moment of the first one is noted in `failed`
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int open_control(const char *name, int flags) {
    char path[4096];
    const char *directory = getenv("DISK_SHIM");
    if (directory == NULL) return -1;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return open(path, flags | O_CLOEXEC, 0600);
}

static void wait_as_told(void) {
    char text[32] = "";
    int fd = open_control("delay", O_RDONLY);
    if (fd < 0) return;
    if (read(fd, text, sizeof text - 1) > 0) {
        long ms = atol(text);
        struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    close(fd);
}

static int fails(void) {
    int fd = open_control("fail", O_RDONLY);
    if (fd < 0) return 0;
    close(fd);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    fd = open_control("failed", O_WRONLY | O_CREAT | O_EXCL);
    if (fd >= 0) {
        dprintf(fd, "%ld.%09ld\n", (long)now.tv_sec, now.tv_nsec);
        close(fd);
    }
    errno = EIO;
    return 1;
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_as_told();
    return fails() ? -1 : real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_as_told();
    return fails() ? -1 : real(fd);
}
