package device

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// request is a header of the block device.
func request(kind uint32, sector uint64) []byte {
	b := binary.LittleEndian.AppendUint32(nil, kind)
	return binary.LittleEndian.AppendUint64(append(b, 0, 0, 0, 0), sector)
}

const blkFeatures = version1 | 1<<1 | 1<<2 | 1<<6 | 1<<9

func newDisk(t *testing.T, sectors int, readOnly bool) (*driver, string) {
	t.Helper()
	path := newImage(t, sectors)
	d := newDriver(t, 0, func(c *Config) { c.Disks = []Disk{{Path: path, ReadOnly: readOnly}} })
	d.bringUp(blkFeatures, 1, queueMax)
	return d, path
}

func TestBlk(t *testing.T) {
	d, path := newDisk(t, 64, false)
	file := func() []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var config [24]byte
	for i := range 6 {
		binary.LittleEndian.PutUint32(config[4*i:], d.get(0x100+4*i))
	}
	if want := [24]byte{64, 8: 0, 9: 0, 10: 1, 12: 126, 21: 2}; config != want {
		t.Errorf("configuration % x, want % x", config, want)
	}
	// Reads, in parts that do not end with sectors.
	room, n := d.do(0, [][]byte{request(0, 3)}, 100, 924, 1)
	if want := append(bytes.Repeat([]byte{4}, 512), bytes.Repeat([]byte{5}, 512)...); n != 1025 || room[2][0] != 0 || !bytes.Equal(append(bytes.Clone(room[0]), room[1]...), want) {
		t.Errorf("%d bytes, answer %d, %x", n, room[2], room[:2])
	}
	// Writes, with a header in two parts and data in three, and the answer behind room that stays.
	data := bytes.Repeat([]byte("guestprobe!\x00"), 128)
	h := request(1, 60)
	want := file()
	room, n = d.do(0, [][]byte{h[:7], append(h[7:], data[:5]...), data[5:700], data[700:]}, 1)
	copy(want[60*512:], data)
	if n != 1 || room[0][0] != 0 || !bytes.Equal(file(), want) {
		t.Errorf("%d bytes, answer %d; the file is right: %v", n, room[0], bytes.Equal(file(), want))
	}
	if room, n := d.do(0, [][]byte{request(8, 0)}, 20, 1); n != 21 || strings.TrimRight(string(room[0]), "\x00") != "guestprobe-disk0" || room[1][0] != 0 {
		t.Errorf("name %q, answer %d, %d bytes", room[0], room[1], n)
	}
	if room, n := d.do(0, [][]byte{request(4, 0)}, 1); n != 1 || room[0][0] != 0 {
		t.Errorf("flush: answer %d, %d bytes", room[0], n)
	}
	const ioError, unknown = 1, 2
	for _, tt := range []struct {
		name   string
		out    [][]byte
		in     []int
		answer byte
	}{
		{"discard", [][]byte{request(11, 0), make([]byte, 16)}, []int{1}, unknown},
		{"write zeroes", [][]byte{request(13, 0), make([]byte, 16)}, []int{1}, unknown},
		{"no such request", [][]byte{request(0x80000000, 0)}, []int{512, 1}, unknown},
		{"read behind the end", [][]byte{request(0, 63)}, []int{1024, 1}, ioError},
		{"read far behind the end", [][]byte{request(0, 1<<64-1)}, []int{512, 1}, ioError},
		{"read around the end", [][]byte{request(0, 1<<55)}, []int{512, 1}, ioError},
		{"half a sector", [][]byte{request(0, 0)}, []int{256, 1}, ioError},
		{"write behind the end", [][]byte{request(1, 64), make([]byte, 512)}, []int{1}, ioError},
		{"write half a sector", [][]byte{request(1, 0), make([]byte, 511)}, []int{1}, ioError},
		{"short header", [][]byte{request(0, 0)[:15]}, []int{512, 1}, ioError},
		{"no header", nil, []int{512, 1}, ioError},
	} {
		room, n := d.do(0, tt.out, tt.in...)
		answer, count := room[len(room)-1][0], uint32(0)
		if len(tt.in) == 1 {
			count = 1
		}
		if answer != tt.answer || n != count {
			t.Errorf("%s: answer %d, %d bytes; want %d, %d", tt.name, answer, n, tt.answer, count)
		}
	}
	if !bytes.Equal(file(), want) {
		t.Error("refused requests changed the file")
	}
	// Nowhere to answer: the request is given back, with nothing done.
	if _, n := d.do(0, [][]byte{request(1, 0), make([]byte, 512)}); n != 0 || !bytes.Equal(file(), want) {
		t.Errorf("no room for the answer: %d bytes", n)
	}
}

// Many requests at once: all are answered, each with its own data, over several rounds of the rings.
func TestBlkMany(t *testing.T) {
	d, _ := newDisk(t, 64, true)
	for round := range 20 {
		d.data = dataAt
		var rooms [][][]byte
		for i := range 40 {
			rooms = append(rooms, d.add(0, [][]byte{request(0, uint64((i+round)%64))}, []int{512, 1}))
		}
		d.notify(0)
		for range rooms {
			if _, n := d.awaitAnswer(0); n != 513 {
				t.Fatalf("%d bytes", n)
			}
		}
		for i, r := range rooms {
			if want := byte((i+round)%64 + 1); r[1][0] != 0 || !bytes.Equal(r[0], bytes.Repeat([]byte{want}, 512)) {
				t.Fatalf("round %d, request %d: answer %d, data %x", round, i, r[1], r[0][:4])
			}
		}
	}
}

func TestBlkReadOnly(t *testing.T) {
	d, path := newDisk(t, 4, true)
	if d.offeredFeatures()&(1<<5) == 0 {
		t.Error("the disk does not say that it is read-only")
	}
	if room, _ := d.do(0, [][]byte{request(1, 0), make([]byte, 512)}, 1); room[0][0] != 1 {
		t.Errorf("write: answer %d", room[0])
	}
	if room, _ := d.do(0, [][]byte{request(4, 0)}, 1); room[0][0] != 0 {
		t.Errorf("flush: answer %d", room[0])
	}
	if b, err := os.ReadFile(path); err != nil || b[0] != 1 {
		t.Errorf("the file was written: %v", err)
	}
}

// A driver that knows no flush writes through, and one that wakes up behind its requests finds them done.
func TestBlkWithoutFlush(t *testing.T) {
	path := newImage(t, 4)
	d := newDriver(t, 0, func(c *Config) { c.Disks = []Disk{{Path: path}} })
	d.bringUp(version1, 1, queueMax)
	if room, _ := d.do(0, [][]byte{request(1, 2), bytes.Repeat([]byte{9}, 512)}, 1); room[0][0] != 0 {
		t.Errorf("answer %d", room[0])
	}
	if b, err := os.ReadFile(path); err != nil || b[1024] != 9 {
		t.Errorf("the file holds %d, %v", b[1024], err)
	}
}

// A file that becomes shorter under a guest is an error of the disk, not of the guest's driver.
func TestBlkTruncated(t *testing.T) {
	d, path := newDisk(t, 8, false)
	if err := os.Truncate(path, 1024); err != nil {
		t.Fatal(err)
	}
	if room, _ := d.do(0, [][]byte{request(0, 1)}, 1024, 1); room[1][0] != 1 {
		t.Errorf("answer %d", room[1])
	}
	if room, _ := d.do(0, [][]byte{request(0, 1)}, 512, 1); room[1][0] != 0 || room[0][0] != 2 {
		t.Errorf("answer %d, %x", room[1], room[0][:1])
	}
}

func TestDiskErrors(t *testing.T) {
	ram, _ := newRAM(t)
	dir := t.TempDir()
	file := func(name string, size int) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	good := file("good", 512)
	open := func(d ...Disk) error {
		p, err := New(Config{VCPUs: 1, IRQ: func(uint32, bool) {}, RAM: ram, Disks: d})
		if err == nil {
			err = p.Close()
		}
		return err
	}
	for _, tt := range []struct {
		disks []Disk
		want  string
	}{
		{[]Disk{{Path: filepath.Join(dir, "none")}}, "no such file or directory"},
		{[]Disk{{Path: dir, ReadOnly: true}}, "neither a regular file nor a block device"},
		{[]Disk{{Path: fifo, ReadOnly: true}}, "neither a regular file nor a block device"},
		{[]Disk{{Path: "/dev/null"}}, "neither a regular file nor a block device"},
		{[]Disk{{Path: file("empty", 0)}}, "0 bytes are no whole number of sectors of 512: is it a raw image?"},
		{[]Disk{{Path: good}, {Path: file("odd", 513)}}, "513 bytes are no whole number of sectors of 512: is it a raw image?"},
		{[]Disk{{Path: good}, {Path: good}}, "in use by another guest"},
		{[]Disk{{Path: good, ReadOnly: true}, {Path: good}}, "in use by another guest"},
		{make([]Disk, MaxDisks+1), "7 disks: there are interrupt lines for 6"},
	} {
		err := open(tt.disks...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %v, want %q", tt.disks, err, tt.want)
		}
		if len(tt.disks) <= MaxDisks && err != nil && !strings.HasPrefix(err.Error(), "disk "+tt.disks[len(tt.disks)-1].Path+": ") {
			t.Errorf("%v: the error does not name the disk: %v", tt.disks, err)
		}
	}
	if err := open(Disk{Path: good, ReadOnly: true}, Disk{Path: good, ReadOnly: true}); err != nil {
		t.Errorf("two readers: %v", err)
	}
	if err := open(Disk{Path: good}); err != nil {
		t.Errorf("behind all that: %v", err)
	}
}
