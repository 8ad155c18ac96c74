package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Disk is a raw image, or a block device of the host, that the guest has as a disk.
type Disk struct {
	Path     string
	ReadOnly bool
}

// String returns the disk as guestprobed's --disk accepts it.
func (d Disk) String() string {
	if d.ReadOnly {
		return d.Path + ",ro"
	}
	return d.Path
}

// The block device (Virtio 1.2, 5.2): features, requests, answers.
const (
	blkSizeMax   = 1 << 1 // a segment's greatest length is in the configuration
	blkSegMax    = 1 << 2 // and the greatest number of segments
	blkReadOnly  = 1 << 5
	blkBlockSize = 1 << 6
	blkFlush     = 1 << 9

	blkIn     = 0
	blkOut    = 1
	blkSync   = 4
	blkGetID  = 8
	blkHeader = 16 // bytes
	blkIDLen  = 20

	blkOK      = 0
	blkIOError = 1
	blkUnknown = 2

	blkSector      = 512
	blkSegmentSize = 64 << 10
	blkSegments    = queueMax - 2 // header and status have a descriptor each
)

// blk is a disk. When it has answered a flush, or a write of a driver that knows
// no flush, the data is on the host's disk.
type blk struct {
	fd       int
	name     string
	readOnly bool
	sectors  uint64
}

// ErrDisk is wrapped by errors about a disk's file.
var ErrDisk = errors.New("disk")

// openDisk opens a disk. It fails if another process, such as another
// guestprobed, may be writing to the disk.
func openDisk(d Disk, n int) (*blk, error) {
	fail := func(err error, hint string) (*blk, error) {
		return nil, fmt.Errorf("%w %s: %w%s", ErrDisk, d.Path, err, hint)
	}
	flags, lock := unix.O_RDWR, unix.LOCK_EX
	if d.ReadOnly {
		flags, lock = unix.O_RDONLY, unix.LOCK_SH
	}
	// O_NONBLOCK: a pipe is rejected below, not waited for.
	fd, err := unix.Open(d.Path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS):
		if !d.ReadOnly {
			return fail(err, " (a disk that cannot be written can be given read-only)")
		}
		return fail(err, "")
	case err != nil:
		return fail(err, "")
	}
	b := &blk{fd: fd, name: fmt.Sprintf("guestprobe-disk%d", n), readOnly: d.ReadOnly}
	if err := b.measure(lock); err != nil {
		return fail(errors.Join(err, unix.Close(fd)), "")
	}
	return b, nil
}

// measure checks that the file can be a disk, and locks it.
func (b *blk) measure(lock int) error {
	var st unix.Stat_t
	if err := unix.Fstat(b.fd, &st); err != nil {
		return err
	}
	if k := st.Mode & unix.S_IFMT; k != unix.S_IFREG && k != unix.S_IFBLK {
		return errors.New("neither a regular file nor a block device")
	}
	if err := unix.Flock(b.fd, lock|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return errors.New("in use by another guest")
		}
		return err
	}
	size, err := unix.Seek(b.fd, 0, io.SeekEnd)
	if err != nil {
		return err
	}
	if size == 0 || size%blkSector != 0 {
		return fmt.Errorf("%d bytes are no whole number of sectors of %d: is it a raw image?", size, blkSector)
	}
	b.sectors = uint64(size) / blkSector
	return nil
}

func (*blk) kind() uint32   { return 2 }
func (*blk) queues() int    { return 1 }
func (b *blk) close() error { return unix.Close(b.fd) }

func (b *blk) features() uint64 {
	f := uint64(blkSizeMax | blkSegMax | blkBlockSize | blkFlush)
	if b.readOnly {
		f |= blkReadOnly
	}
	return f
}

// config is struct virtio_blk_config as far as the features need it.
func (b *blk) config() []byte {
	c := make([]byte, 24)
	binary.LittleEndian.PutUint64(c, b.sectors)
	binary.LittleEndian.PutUint32(c[8:], blkSegmentSize)
	binary.LittleEndian.PutUint32(c[12:], blkSegments)
	binary.LittleEndian.PutUint32(c[20:], blkSector)
	return c
}

// serve does a request: a header to read, data, and one byte for the answer, the last to write.
func (b *blk) serve(_ int, c *chain, features uint64) (written uint32, done bool) {
	room := totalLen(c.in)
	if room == 0 {
		return 0, true // there is no room even for the answer
	}
	answer := b.handleRequest(c.out, cut(c.in, 0, room-1), features)
	cut(c.in, room-1, room)[0][0] = answer
	if answer != blkOK && room > 1 {
		// The count of written bytes starts at the first byte, so without data the answer
		// cannot be counted. Drivers look at it anyway (virtblk_done in Linux).
		return 0, true
	}
	return uint32(room), true
}

// handleRequest handles a request and returns the answer. blkOK means that all
// of in was written.
func (b *blk) handleRequest(out, in [][]byte, features uint64) byte {
	var h [blkHeader]byte
	if gather(h[:], out) < blkHeader {
		return blkIOError
	}
	out = cut(out, blkHeader, totalLen(out))
	sector := binary.LittleEndian.Uint64(h[8:])
	switch binary.LittleEndian.Uint32(h[:]) {
	case blkIn:
		return b.transfer(unix.Preadv, in, sector)
	case blkOut:
		if b.readOnly {
			return blkIOError
		}
		answer := b.transfer(unix.Pwritev, out, sector)
		if answer == blkOK && features&blkFlush == 0 {
			answer = b.sync()
		}
		return answer
	case blkSync:
		return b.sync()
	case blkGetID:
		var id [blkIDLen]byte
		rest := id[:copy(id[:], b.name)]
		for _, p := range in {
			n := copy(p, rest)
			rest = rest[n:]
			clear(p[n:])
		}
		return blkOK
	}
	return blkUnknown
}

// transfer reads or writes whole sectors that the disk has.
func (b *blk) transfer(op func(int, [][]byte, int64) (int, error), data [][]byte, sector uint64) byte {
	size := totalLen(data)
	if n := uint64(size) / blkSector; size%blkSector != 0 || sector > b.sectors || n > b.sectors-sector {
		return blkIOError
	}
	for done := 0; done < size; {
		n, err := op(b.fd, cut(data, done, size), int64(sector*blkSector)+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n == 0: // 0: the file has become shorter
			return blkIOError
		}
		done += max(n, 0)
	}
	return blkOK
}

// sync has the host write the guest's data to its disk.
func (b *blk) sync() byte {
	if b.readOnly {
		return blkOK
	}
	for {
		switch err := unix.Fdatasync(b.fd); {
		case err == nil:
			return blkOK
		case !errors.Is(err, unix.EINTR):
			return blkIOError
		}
	}
}
