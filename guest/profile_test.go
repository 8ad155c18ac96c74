package guest

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// testProfile returns the bytes of a sound profile: the built-in guest's.
func testProfile() []byte {
	b := make([]byte, ProfileSize)
	le := binary.LittleEndian
	le.PutUint64(b[ProfileMagicAt:], ProfileMagic)
	mask := int64(-8192)
	le.PutUint64(b[ProfileStackMask:], uint64(mask))
	le.PutUint64(b[ProfileStackMagic:], 0x1234)
	le.PutUint64(b[ProfileFlagsAt:], 1)
	for at, v := range map[int]uint32{ProfileCPUOff: 16, ProfilePIDOff: 20, ProfileTGIDOff: 24, ProfileCommOff: 32} {
		le.PutUint32(b[at:], v)
	}
	return b
}

// profileELF is soundELF with the bytes b as data symbol gp_profile.
func profileELF(b []byte) testELF {
	e := soundELF()
	copy(e.segs[1].data[0x40:], b)
	e.syms = append(e.syms, testSym{SymProfile, testKernel + 0x2040, ProfileSize, symInfo(elf.STB_GLOBAL, elf.STT_OBJECT), 3})
	return e
}

func mustProfile(t *testing.T, e testELF) *Image {
	t.Helper()
	img, err := ParseELF(e.build())
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestProfile(t *testing.T) {
	mask := int64(-8192)
	want := Profile{StackMask: uint64(mask), StackMagic: 0x1234, CPUOff: 16, PIDOff: 20, TGIDOff: 24, CommOff: 32,
		Flags: ProfileOneMapping, FlagsAt: testKernel + 0x2040 + ProfileFlagsAt}
	if got, err := mustProfile(t, profileELF(testProfile())).Profile(); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := mustProfile(t, soundELF()).Profile(); !errors.Is(err, ErrSymbolNotFound) {
		t.Errorf("without a profile: %v", err)
	}
}

// TestProfileRefuses changes one field of a sound profile.
func TestProfileRefuses(t *testing.T) {
	const last = 8192
	u64 := func(at int, v uint64) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint64(b[at:], v) }
	}
	off := func(at int, v int32) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], uint32(v)) }
	}
	for _, tt := range []struct {
		name string
		edit func([]byte)
		want string // "": accepted
	}{
		{"magic", u64(ProfileMagicAt, 1), "magic 0x1, not"},
		{"no mask", u64(ProfileStackMask, 0), "stack mask"},
		{"mask of ones", u64(ProfileStackMask, ^uint64(0)), "stack mask"},
		{"mask with a hole", u64(ProfileStackMask, 0xffffffff_ffffd000), "stack mask"},
		{"mask without upper bits", u64(ProfileStackMask, 0xffffe000), "stack mask"},
		{"stack too small", u64(ProfileStackMask, ^uint64(255)), "stack mask"},
		{"smallest stack", u64(ProfileStackMask, ^uint64(MinProfileStack-1)), ""},
		{"largest stack", u64(ProfileStackMask, ^uint64(MaxProfileStack-1)), ""},
		{"stack too large", u64(ProfileStackMask, ^uint64(2*MaxProfileStack-1)), "stack mask"},
		{"sign bit only", u64(ProfileStackMask, 1<<63), "stack mask"},
		{"no stack magic", u64(ProfileStackMagic, 0), "the magic of stacks is 0"},
		{"all flags", u64(ProfileFlagsAt, ^uint64(0)), ""},
		{"last magic", off(ProfileMagicOff, last-8), ""},
		{"magic outside", off(ProfileMagicOff, last), "magic at offset 8192"},
		{"magic partly outside", off(ProfileMagicOff, last-4), "magic at offset 8188"},
		{"magic below", off(ProfileMagicOff, -8), "magic at offset -8"},
		{"magic not aligned", off(ProfileMagicOff, 4), "magic at offset 4"},
		{"last vCPU", off(ProfileCPUOff, last-4), ""},
		{"vCPU outside", off(ProfileCPUOff, last), "vCPU at offset"},
		{"pid not aligned", off(ProfilePIDOff, 2), "pid at offset 2"},
		{"tgid lowest", off(ProfileTGIDOff, -1<<31), "tgid at offset"},
		{"last name", off(ProfileCommOff, last-16), ""},
		{"name outside", off(ProfileCommOff, last-15), "comm at offset"},
		{"name greatest", off(ProfileCommOff, 1<<31-1), "comm at offset"},
	} {
		b := testProfile()
		tt.edit(b)
		_, err := mustProfile(t, profileELF(b)).Profile()
		ie := (*ImageError)(nil)
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (!errors.As(err, &ie) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	e := profileELF(testProfile())
	e.syms[len(e.syms)-1].addr = testKernel + 0x2100 - ProfileSize + 8
	if _, err := mustProfile(t, e).Profile(); err == nil || !strings.Contains(err.Error(), "not in the file") {
		t.Errorf("beyond the file's bytes: %v", err)
	}
	e.syms[len(e.syms)-1].addr = testKernel + 0x2041
	if _, err := mustProfile(t, e).Profile(); err == nil || !strings.Contains(err.Error(), "not a multiple of 8") {
		t.Errorf("not aligned: %v", err)
	}
}

func TestReadTask(t *testing.T) {
	p, err := parseProfile(testProfile())
	if err != nil {
		t.Fatal(err)
	}
	const base = 0x40000
	stack := make([]byte, 8192)
	le := binary.LittleEndian
	le.PutUint64(stack, p.StackMagic)
	le.PutUint32(stack[16:], 3)
	le.PutUint32(stack[20:], 101)
	le.PutUint32(stack[24:], 100)
	copy(stack[32:], "a task")
	short := len(stack)
	read := func(addr GVA, b []byte) error {
		if addr < base || addr+GVA(len(b)) > base+GVA(short) {
			return errors.New("no memory")
		}
		copy(b, stack[addr-base:])
		return nil
	}
	want := Task{CPU: 3, PID: 101, TGID: 100, Comm: [16]byte([]byte("a task\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))}
	for _, rsp := range []uint64{base, base + 1, base + 8191} {
		for _, comm := range []int32{32, 8000} { // close to the others, and far away
			q, got := p, Task{}
			q.CommOff = comm
			copy(stack[comm:], "a task")
			if ok := q.ReadTask(&got, rsp, 0, read); !ok || got.CPU != want.CPU || got.PID != want.PID || got.TGID != want.TGID || got.Comm != want.Comm {
				t.Errorf("at %#x: %+v, %v", rsp, got, ok)
			}
		}
	}
	for _, rsp := range []uint64{0, base - 1, base + 8192, 1 << 47, 1 << 63, ^uint64(0)} {
		if got := new(Task); p.ReadTask(got, rsp, 0, read) {
			t.Errorf("at %#x: %+v", rsp, got)
		}
	}
	for short = 0; short < 48; short++ {
		if p.ReadTask(new(Task), base+8, 0, read) {
			t.Errorf("with %d readable bytes", short)
		}
	}
	short = len(stack)
	stack[0]++
	if p.ReadTask(new(Task), base+8, 0, read) {
		t.Error("without the magic")
	}
}

// TestReadTaskByGS: the vCPU's memory tells the task, and the task's structure whether
// it is gone.
func TestReadTaskByGS(t *testing.T) {
	const gs, at = GVA(0xff3f188000010000), GVA(0xff3f188000020000) // of 57 bits
	p := Profile{GS: true, CPUOff: 4, TaskOff: 8, StateOff: 0, PIDOff: 0x500, TGIDOff: 0x504, CommOff: 0x900, Dead: 0x80}
	cpu, task := make([]byte, 16), make([]byte, 0x910)
	le := binary.LittleEndian
	le.PutUint32(cpu[4:], 5)
	le.PutUint64(cpu[8:], uint64(at))
	le.PutUint32(task[0x500:], 31)
	le.PutUint32(task[0x504:], 30)
	copy(task[0x900:], "kworker")
	missing := GVA(0) // memory at this address cannot be read
	read := func(addr GVA, b []byte) error {
		for base, mem := range map[GVA][]byte{gs: cpu, at: task} {
			if off := addr - base; off < GVA(len(mem)) && addr != missing {
				copy(b, mem[off:])
				return nil
			}
		}
		return errors.New("no memory")
	}
	var got Task
	if !p.ReadTask(&got, 0x1234, gs, read) || got.CPU != 5 || got.PID != 31 || got.TGID != 30 || got.At != at || got.Comm != [16]byte([]byte("kworker\x00\x00\x00\x00\x00\x00\x00\x00\x00")) {
		t.Errorf("got %+v", got)
	}
	if p.ReadTask(&got, 0x1234, 0, read) {
		t.Error("a task without a GS base")
	}
	for _, missing = range []GVA{gs + 4, gs + 8, at + 0x500, at + 0x504, at + 0x900} {
		if p.ReadTask(&got, 0x1234, gs, read) {
			t.Errorf("a task, and %v cannot be read", missing)
		}
	}
	buf := make([]byte, 8)
	gone := func(what string, at GVA, pid uint32, want bool) {
		t.Helper()
		if got := p.Gone(0, at, pid, buf, read); got != want {
			t.Errorf("%s: gone %v, want %v", what, got, want)
		}
	}
	missing = 0
	gone("the task", at, 31, false)
	gone("another task's structure", at, 32, true)
	gone("none that is known", 0, 31, false)
	gone("none that can be read", gs+0x1000, 31, false)
	le.PutUint32(task, 0x81)
	gone("dead", at, 31, true)
	missing = at
	gone("a state that cannot be read", at, 31, false)
	missing, p.Dead = 0, 0
	gone("states are not known", at, 31, false)
}

// FuzzProfile parses anything; an accepted profile keeps the promises of Profile.
func FuzzProfile(f *testing.F) {
	f.Add(testProfile())
	f.Add(make([]byte, ProfileSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < ProfileSize {
			return
		}
		p, err := parseProfile(b)
		if err != nil {
			ie := (*ImageError)(nil)
			if !errors.As(err, &ie) {
				t.Fatalf("error of no known kind: %v", err)
			}
			return
		}
		size := -p.StackMask
		if size&(size-1) != 0 || size < MinProfileStack || size > MaxProfileStack || p.StackMagic == 0 {
			t.Errorf("stacks of %d bytes, magic %#x", size, p.StackMagic)
		}
		for off, n := range map[int32]uint64{p.MagicOff: 8, p.CPUOff: 4, p.PIDOff: 4, p.TGIDOff: 4, p.CommOff: 4} {
			if off < 0 || uint64(off)+n > size {
				t.Errorf("%+v: offset %d", p, off)
			}
		}
		for _, rsp := range []uint64{0, 1 << 46, le64(b), ^uint64(0)} {
			p.ReadTask(new(Task), rsp, 0, func(addr GVA, q []byte) error {
				if !addr.Canonical() || uint64(addr)&p.StackMask != rsp&p.StackMask || (uint64(addr)+uint64(len(q))-1)&p.StackMask != rsp&p.StackMask {
					t.Errorf("%d bytes at %v read for %#x", len(q), addr, rsp)
				}
				if i := int(int64(p.MagicOff) - int64(uint64(addr)&^p.StackMask)); i >= 0 && i+8 <= len(q) {
					binary.LittleEndian.PutUint64(q[i:], p.StackMagic)
				}
				return nil
			})
		}
	})
}

// TestFlagsAt: the flags of an image are in its profile, or, without one, in an object of
// their own.
func TestFlagsAt(t *testing.T) {
	flags := func(e testELF, at uint64) testELF {
		e.syms = append(e.syms, testSym{SymFlags, at, 8, symInfo(elf.STB_GLOBAL, elf.STT_OBJECT), 3})
		return e
	}
	bad := testProfile()
	bad[ProfileMagicAt]++
	for _, tt := range []struct {
		name string
		elf  testELF
		want GVA
		err  string
	}{
		{"neither", soundELF(), 0, "gp_flags"},
		{"a profile", profileELF(testProfile()), testKernel + 0x2040 + ProfileFlagsAt, ""},
		{"an object", flags(soundELF(), testKernel+0x2008), testKernel + 0x2008, ""},
		{"both", flags(profileELF(testProfile()), testKernel+0x2008), testKernel + 0x2040 + ProfileFlagsAt, ""},
		{"a damaged profile", flags(profileELF(bad), testKernel+0x2008), 0, "magic"},
		{"not aligned", flags(soundELF(), testKernel+0x2004), 0, "not a multiple of 8"},
		{"outside the file", flags(soundELF(), 0x7000_0000), 0, "are not in the file"},
	} {
		at, err := mustProfile(t, tt.elf).FlagsAt()
		if at != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, %v, want %v, %q", tt.name, at, err, tt.want, tt.err)
		}
	}
}
