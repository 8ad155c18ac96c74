/*
 * A file system of constants. Descriptors need no table: a file's descriptor
 * is its number plus 3, so that results do not depend on who else runs.
 */
#include "kernel.h"

#define PATH_LEN 32
#define FIRST_FD 3

struct file {
	const char *path;
	const char *data;
	u64 size;
};

#define FILE(p, d) { .path = p, .data = d, .size = sizeof(d) - 1 }

static const struct file files[] = {
	FILE("/etc/hostname", "guestprobe\n"),
	FILE("/etc/motd", "int3 is a one-byte instruction.\n"),
	FILE("/proc/version", "guestprobe built-in guest, x86-64\n"),
	FILE("/dev/null", ""),
};

u64 vfs_bytes_read;
static struct spinlock vfs_lock;

PROBED static long lookup(const char *path)
{
	u32 i;

	/* Paths differ in their sixth or seventh character at the latest. */
	for (i = 0; i < ARRAY_SIZE(files); i++)
		if (files[i].path[5] == path[5] && str_eq(files[i].path, path))
			return i;
	return -ENOENT;
}

/*
 * Returns a descriptor, or -ENOENT, -EFAULT, -ENAMETOOLONG, -EINVAL. The path
 * may be in user or in kernel memory.
 */
PROBED long sys_open(const char *path, int flags, int mode)
{
	char name[PATH_LEN];
	long n;

	(void)mode;
	if (flags & ~3)
		return -EINVAL;
	n = strncpy_fixup(name, path, sizeof(name));
	if (n < 0)
		return n;
	if (n == sizeof(name))
		return -ENAMETOOLONG;
	if (n < 6)
		return -ENOENT;
	n = lookup(name);
	return n < 0 ? n : n + FIRST_FD;
}

/* Returns the number of bytes read, 0 at the end, or -EBADF, -EFAULT. */
PROBED long vfs_read(int fd, char *buf, u64 count, u64 pos)
{
	const struct file *f;
	u64 flags;

	if (fd < FIRST_FD || fd >= (int)(FIRST_FD + ARRAY_SIZE(files)))
		return -EBADF;
	f = &files[fd - FIRST_FD];
	if (pos >= f->size)
		return 0;
	if (count > f->size - pos)
		count = f->size - pos;
	if (copy_bytes_fixup(buf, f->data + pos, count))
		return -EFAULT;
	flags = spin_lock_irqsave(&vfs_lock);
	vfs_bytes_read += count;
	spin_unlock_irqrestore(&vfs_lock, flags);
	return (long)count;
}

/* Counts the bytes, as far as they can be read. */
PROBED long vfs_write(int fd, const char *buf, u64 count)
{
	char chunk[64];

	if (fd < 0 || fd >= (int)(FIRST_FD + ARRAY_SIZE(files)))
		return -EBADF;
	if (count > sizeof(chunk))
		count = sizeof(chunk);
	if (copy_bytes_fixup(chunk, buf, count))
		return -EFAULT;
	return (long)count;
}
